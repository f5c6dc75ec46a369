#include "tests/mutation/subjects.hpp"

namespace flashjit::test {
namespace {

constexpr Problem kCausal64{.head_dim = 64, .causal = true};
constexpr Problem kFull64{.head_dim = 64};
constexpr Problem kFull192{.head_dim = 192};
constexpr Problem kFp16{.dtype = DType::fp16, .head_dim = 64, .causal = true};
constexpr Problem kBackward{.pass = Pass::backward, .head_dim = 64};
constexpr Problem kBackwardCausal{.pass = Pass::backward, .head_dim = 64, .causal = true};
constexpr Problem kBackwardFp16{.pass = Pass::backward, .dtype = DType::fp16, .head_dim = 64, .causal = true};
constexpr Problem kBackwardOrdered{
    .pass = Pass::backward, .head_dim = 80, .causal = true, .deterministic = true};
constexpr Problem kBackward72{.pass = Pass::backward, .head_dim = 72, .causal = true};
constexpr Problem kBackward72Wide{.pass = Pass::backward, .head_dim = 72, .head_dim_v = 128};
constexpr Problem kBackward80{.pass = Pass::backward, .head_dim = 80};
constexpr Problem kBackward128{.pass = Pass::backward, .head_dim = 128};
constexpr Problem kBackward136{.pass = Pass::backward, .head_dim = 136, .head_dim_v = 72, .causal = true};
constexpr Problem kBackward256{.pass = Pass::backward, .head_dim = 256, .head_dim_v = 136, .causal = true};
constexpr Problem kBackwardFp32{.pass = Pass::backward, .dtype = DType::fp32, .head_dim = 32, .causal = true};
constexpr Problem kBackwardFp32Wide{
    .pass = Pass::backward, .dtype = DType::fp32, .head_dim = 72, .head_dim_v = 40, .causal = true};
constexpr Problem kBackwardFp32Full{.pass = Pass::backward, .dtype = DType::fp32, .head_dim = 40};
constexpr Problem kBackwardFp32Mixed{
    .pass = Pass::backward, .dtype = DType::fp32, .head_dim = 40, .head_dim_v = 64, .causal = true};
constexpr Problem kBackwardFp32Narrow{
    .pass = Pass::backward, .dtype = DType::fp32, .head_dim = 16, .causal = true};
constexpr Problem kFp32{.dtype = DType::fp32, .head_dim = 32, .causal = true};
constexpr Problem kFp32WideQ{.dtype = DType::fp32, .head_dim = 64, .head_dim_v = 32, .causal = true};
constexpr Problem kFp32WideV{.dtype = DType::fp32, .head_dim = 32, .head_dim_v = 136, .causal = true};
// Several tiles of queries and of keys, ragged ends, two heads on one K.
constexpr Shape kShape{.batch = 1, .heads = 2, .heads_kv = 1, .seqlen_q = 150, .seqlen_k = 210};
constexpr Shape kWide{.batch = 1, .heads = 3, .heads_kv = 1, .seqlen_q = 300, .seqlen_k = 420};
// Tiles of keys that four CTAs divide: five, which take nine steps along the queries, and six.
constexpr Shape kUneven{.batch = 1, .heads = 2, .heads_kv = 1, .seqlen_q = 540, .seqlen_k = 600};
constexpr Shape kUnevenToo{.batch = 1, .heads = 2, .heads_kv = 1, .seqlen_q = 600, .seqlen_k = 700};
// More blocks of keys than are in flight, for each of several CTAs.
constexpr Shape kLong{.batch = 1, .heads = 2, .heads_kv = 1, .seqlen_q = 150, .seqlen_k = 900};
// The same, whose tiles hold no heads side by side, so that their warpgroups see more keys and fewer.
constexpr Shape kWideOwnHeads{.batch = 1, .heads = 3, .heads_kv = 3, .seqlen_q = 300, .seqlen_k = 420};
constexpr Shape kLongOwnHeads{.batch = 1, .heads = 2, .heads_kv = 2, .seqlen_q = 150, .seqlen_k = 900};
// Three tiles of queries for each of two heads that share nothing.
constexpr Shape kOwnHeads{.batch = 1, .heads = 2, .heads_kv = 2, .seqlen_q = 150, .seqlen_k = 80};
// Tiles of so little work that nothing but their own barriers orders one after another.
constexpr Shape kShortRows{.batch = 1, .heads = 6, .heads_kv = 1, .seqlen_q = 300, .seqlen_k = 40};
constexpr Shape kShortColumns{.batch = 1, .heads = 4, .heads_kv = 4, .seqlen_q = 40, .seqlen_k = 420};

Subject subject(std::string name, std::string arch, std::string schedule, const Problem& problem,
                const Shape& shape = kShape, int sm_count = 0) {
  const int few = problem.pass == Pass::backward ? 1 : 2;
  return {.name = std::move(name),
          .arch = std::move(arch),
          .schedule = std::move(schedule),
          .one = {.problem = problem, .shape = shape},
          .sm_count = sm_count != 0 ? sm_count : few};
}

}  // namespace

std::vector<Subject> sync_subjects() {
  std::vector<Subject> subjects{
      subject("mma", "sm_80", "mma:m64n32w4s2", kCausal64),
      subject("mma, three stages", "sm_80", "mma:m64n32w4s3", kFull64),
      subject("mma, K and V apart", "sm_80", "mma:m64n32w4s2kv1", kCausal64),
      subject("mma, one stage, Q in registers", "sm_86", "mma:m64n32w4s1qr1kv1", kCausal64),
      subject("mma, optimistic", "sm_120", "mma:m64n32w4s2op1", kCausal64),
      subject("mma, persistent", "sm_86", "mma:m64n32w4s1kv1p1", kFull192, kOwnHeads),
      subject("mma, no cp.async", "sm_75", "mma:m64n32w4s1kv1", kFp16),
      subject("simt", "sm_80", "simt:m64n32w4s2", kFp32),
      subject("mma, fp32", "sm_80", "mma:m64n32w4s1kv1", kFp32),
      subject("simt, one buffer", "sm_90", "simt:m64n32w4s1", kFp32),
      subject("simt, no cp.async", "sm_75", "simt:m64n32w4s2", kFp32),
      subject("wgmma", "sm_90a", "wgmma:m128n64s2p2", kCausal64, kWide),
      subject("wgmma, O through Q", "sm_90a", "wgmma:m128n64s2o0p1", kFull64, kWide),
      subject("wgmma, no overlap, Q in shared memory", "sm_90a", "wgmma:m128n64s2qr0pp0ov0", kCausal64,
              kWide),
      subject("wgmma, fp32", "sm_90a", "wgmma:m128n32s1qr2op0pp0ov0p0", kFp32, kWideOwnHeads),
      subject("wgmma, fp32, pairs", "sm_90a", "wgmma:m128n32s1qr2op0pp0ov0p0cl2", kFp32, kWideOwnHeads),
      subject("wgmma, fp32, columns shared out", "sm_90a", "wgmma:m128n32s1qr2op0pp0ov0p0sp2", kFp32WideQ,
              kWide),
      subject("wgmma, fp32, two producers", "sm_90a", "wgmma:m64n32s2qr0op0pp0ov0p0", kFp32WideV, kWide),
      subject("wgmma backward", "sm_90a", "wgmma-backward:m128n128s2", kBackward, kWide),
      subject("wgmma backward, dQ apart", "sm_90a", "wgmma-backward:m64n64s2dq0", kBackwardCausal, kWide),
      subject("simt backward", "sm_86", "simt-backward:m32n32w4dq0", kBackwardFp32),
      subject("simt backward, dQ added", "sm_120", "simt-backward:m32n32w4dq1", kBackwardFp32),
      subject("wgmma, three warpgroups", "sm_90a", "wgmma:m192n64s2qr0", kFull64, kWide),
      subject("wgmma, shared loads", "sm_90a", "wgmma:m128n64s2cl2", kFull64, kWide),
      subject("wgmma, shared loads under a mask", "sm_90a", "wgmma:m128n64s2p2cl2", kCausal64, kWideOwnHeads),
      subject("wgmma, keys shared out", "sm_90a", "wgmma:m192n32s6qr0p0sp2", kCausal64, kLongOwnHeads),
      // Three clusters to a tile, of the sixteen that four multiprocessors hold.
      subject("wgmma, clusters share out keys", "sm_90a", "wgmma:m64n16s4pp0p0sp2ch2", kFull64, kLong, 4),
      // Six tiles, four shares.
      subject("wgmma, even shares", "sm_90a", "wgmma:m64n16s4pp0p3", kFull64, kLong, 4),
      subject("wgmma, even shares under a mask", "sm_90a", "wgmma:m64n16s4pp0p3", kCausal64, kLong, 4),
      subject("wgmma backward, dQ in order", "sm_90a", "wgmma-backward:m64n128s2dq2", kBackwardOrdered,
              kWide),
      subject("wgmma backward, dQ staged", "sm_90a", "wgmma-backward:m64n128s2t1st1", kBackward72, kWide),
      subject("wgmma backward, dQ with dK", "sm_90a", "wgmma-backward:m64n128s2t1st1", kBackward72Wide,
              kWide),
      subject("wgmma backward, 80 queries", "sm_90a", "wgmma-backward:m80n128s2t1", kBackward128, kWide),
      subject("wgmma backward, pairs of CTAs", "sm_90a", "wgmma-backward:m64n64s2", kBackward136, kWide),
      subject("wgmma backward, pairs of CTAs, no room", "sm_90a", "wgmma-backward:m64n64s2", kBackward256,
              kWide),
      subject("wgmma backward, parts", "sm_90a", "wgmma-backward:m128n128s2t1sp6", kBackward, kWide),
      subject("wgmma backward, divided tiles", "sm_90a", "wgmma-backward:m64n128s2", kBackward80, kUneven, 4),
      subject("mma backward", "sm_90a", "mma-backward:m32n64w4s2dq1", kBackwardCausal),
      subject("mma backward, shared keys", "sm_80", "mma-backward:m64n64w8s2sp2dq1", kBackwardCausal),
      subject("mma backward, no cp.async", "sm_75", "mma-backward:m32n64w4s1sp2dq1", kBackwardFp16),
      subject("mma backward, dQ apart", "sm_86", "mma-backward:m32n64w4s2", kBackwardCausal),
      subject("mma backward, shared keys, dQ apart", "sm_89", "mma-backward:m64n64w8s2sp2", kBackwardCausal),
      subject("mma backward, one stage", "sm_80", "mma-backward:m32n64w4s1dq1", kBackwardCausal),
      subject("mma backward, no cp.async, dQ apart", "sm_75", "mma-backward:m32n64w4s1", kBackwardFp16),
      subject("simt backward, tiles of a few rows", "sm_89", "simt-backward:m16n16w4dq1", kBackwardFp32),
      subject("simt backward, narrow heads", "sm_90", "simt-backward:m32n32w4dq0", kBackwardFp32Narrow),
      subject("mma backward, fp32", "sm_80", "mma-backward:m32n32w4dq1", kBackwardFp32),
      subject("mma backward, fp32, shared keys", "sm_90", "mma-backward:m32n32w8sp2dq1", kBackwardFp32),
      subject("mma backward, fp32, dQ apart", "sm_86", "mma-backward:m32n32w4", kBackwardFp32),
      subject("mma backward, fp32, shared keys, dQ apart", "sm_120", "mma-backward:m32n32w8sp2",
              kBackwardFp32),
      subject("wgmma backward, fp32", "sm_90a", "wgmma-backward:m64n64s1", kBackwardFp32Wide, kWide),
      subject("wgmma backward, fp32, two stages", "sm_90a", "wgmma-backward:m64n64s2", kBackwardFp32, kWide),
      subject("wgmma backward, fp32, dQ apart", "sm_90a", "wgmma-backward:m64n64s1dq0", kBackwardFp32Full,
              kWide),
      subject("wgmma backward, fp32, dQ apart, causal", "sm_90a", "wgmma-backward:m64n64s2dq0",
              kBackwardFp32Mixed, kWide),
      subject("wgmma backward, fp32, dQ apart, own heads", "sm_90a", "wgmma-backward:m64n64s2dq0",
              kBackwardFp32Full, kOwnHeads),
      subject("simt, fragments ahead", "sm_86", "simt:m64n64w4s2l16pf1", kFp32),
      subject("mma, three stages, K and V apart", "sm_90", "mma:m64n32w4s3kv1", kCausal64),
  };
  for (Subject& made : subjects) {
    if (made.schedule.starts_with("wgmma:")) made.more = {kShortRows};
    if (made.schedule.starts_with("wgmma-backward:")) made.more = {kShortColumns};
    // All tiles of a head at once, so that they meet at dQ.
    if (made.name.ends_with(", dQ in order")) made.sm_count = 4;
    // And of two heads, so that tiles begin all over the queries.
    if (made.name.ends_with(", 80 queries") || made.name.ends_with(", dQ with dK")) made.sm_count = 8;
    if (made.name.find(", pairs of CTAs") != std::string::npos) made.sm_count = 8;
  }
  return subjects;
}

namespace {

std::vector<Subject> backward_subjects() {
  constexpr Problem kWgmma{.pass = Pass::backward, .head_dim = 64, .causal = true};
  constexpr Problem kFull{.pass = Pass::backward, .head_dim = 80};
  constexpr Problem kOwn{.pass = Pass::backward, .head_dim = 80, .causal = true};
  constexpr Problem kApart{.pass = Pass::backward, .head_dim = 136, .causal = true};
  constexpr Problem kSimt{.pass = Pass::backward, .dtype = DType::fp32, .head_dim = 32, .causal = true};
  constexpr Problem kSplit{.pass = Pass::backward, .dtype = DType::fp32, .head_dim = 40, .head_dim_v = 24};
  const Shape few_keys{.batch = 1, .heads = 2, .heads_kv = 1, .seqlen_q = 330, .seqlen_k = 150};
  std::vector<Subject> subjects{
      subject("wgmma backward", "sm_90a", "wgmma-backward:m128n128s2", kWgmma, kWide),
      subject("wgmma backward, dQ in order, full", "sm_90a", "wgmma-backward:m64n128s2dq2", kFull, kWide),
      subject("wgmma backward, rows without keys", "sm_90a", "wgmma-backward:m128n128s2dq2", kWgmma,
              few_keys),
      subject("wgmma backward, dQ apart, diagonal", "sm_90a", "wgmma-backward:m64n128s2dq0", kOwn, kWide),
      subject("wgmma backward, two passes", "sm_90a", "wgmma-backward:m64n64s2dq0", kApart, kShape),
      subject("simt backward", "sm_80", "simt-backward:m32n32w4", kSimt),
      subject("simt backward, atomic", "sm_80", "simt-backward:m32n32w4dq1", kSimt),
      subject("mma backward, fp32, odd sizes", "sm_80", "mma-backward:m16n32w4dq1", kSplit),
  };
  Subject one_key =
      subject("mma backward, fp32, one key of great weight", "sm_90", "mma-backward:m32n32w8sp2dq1",
              {.pass = Pass::backward, .dtype = DType::fp32, .head_dim = 200, .causal = true},
              {.batch = 2, .heads = 2, .heads_kv = 2, .seqlen_q = 129, .seqlen_k = 1});
  one_key.one.inputs = autotune::InputKind::crowd;
  subjects.push_back(std::move(one_key));
  // All tiles of a head at once, so that they meet at dQ.
  for (Subject& made : subjects) {
    if (made.name.find(", dQ ") == std::string::npos || made.name.starts_with("mma")) continue;
    made.sm_count = 4;
    made.more = {kShortColumns};
  }
  // Two heads of keys are one section, and the third is the last one.
  subjects.push_back(subject("wgmma backward, sections of heads", "sm_90a", "wgmma-backward:m128n128s2t1",
                             kWgmma,
                             {.batch = 1, .heads = 6, .heads_kv = 3, .seqlen_q = 150, .seqlen_k = 420}, 8));
  subjects.push_back(subject("wgmma backward, spread tiles", "sm_90a", "wgmma-backward:m128n128s2", kWgmma,
                             {.batch = 1, .heads = 2, .heads_kv = 1, .seqlen_q = 300, .seqlen_k = 8192}, 8));
  constexpr Problem kParts{.pass = Pass::backward, .head_dim = 72, .head_dim_v = 96, .causal = true};
  constexpr Problem kPartsOfBoth{.pass = Pass::backward, .head_dim = 40, .head_dim_v = 56};
  subjects.push_back(subject("wgmma backward, parts of heads", "sm_90a", "wgmma-backward:m64n128s2sp3",
                             kParts,
                             {.batch = 2, .heads = 6, .heads_kv = 2, .seqlen_q = 150, .seqlen_k = 210}, 8));
  subjects.push_back(subject("wgmma backward, parts of heads and rows", "sm_90a",
                             "wgmma-backward:m128n128s2t1sp5", kPartsOfBoth,
                             {.batch = 2, .heads = 4, .heads_kv = 2, .seqlen_q = 450, .seqlen_k = 210}, 8));
  subjects.push_back(subject("wgmma backward, parts of nothing", "sm_90a", "wgmma-backward:m64n128s2sp3",
                             kParts,
                             {.batch = 2, .heads = 3, .heads_kv = 1, .seqlen_q = 0, .seqlen_k = 210}));
  for (const auto& [name, schedule] :
       {std::pair{"wgmma backward, divided tiles", "wgmma-backward:m64n128s2"},
        {"wgmma backward, divided tiles, staged", "wgmma-backward:m64n128s2st1"}}) {
    subjects.push_back(subject(name, "sm_90a", schedule, kFull, kUneven, 4));
    subjects.back().more = {kUnevenToo};
  }
  Subject too_few = subjects[1];
  too_few.name = "wgmma backward, dQ in order, fewer CTAs than tiles";
  too_few.sm_count = 2;
  subjects.push_back(std::move(too_few));
  return subjects;
}

}  // namespace

std::vector<Subject> template_subjects() {
  // Few queries: the heads that share K share a tile.
  const Shape few_queries{.batch = 2, .heads = 8, .heads_kv = 2, .seqlen_q = 20, .seqlen_k = 150};
  const Shape odd_groups{.batch = 2, .heads = 6, .heads_kv = 2, .seqlen_q = 20, .seqlen_k = 150};
  const Shape more_queries{.batch = 1, .heads = 4, .heads_kv = 1, .seqlen_q = 50, .seqlen_k = 150};
  std::vector<Subject> subjects = sync_subjects();
  for (Subject& made : subjects) made.conflict_free = made.schedule.starts_with("mma:");
  const auto with = [&](Subject made, autotune::InputKind inputs) {
    made.one.inputs = inputs;
    subjects.push_back(std::move(made));
  };
  const Shape few_keys{.batch = 2, .heads = 2, .heads_kv = 1, .seqlen_q = 150, .seqlen_k = 40};
  with(subject("wgmma, last panels", "sm_90a", "wgmma:m64n80s2qr0pp0", {.head_dim = 72, .head_dim_v = 88},
               kOwnHeads),
       autotune::InputKind::normal);
  constexpr Problem wide_values{.head_dim = 32, .head_dim_v = 200, .causal = true};
  with(subject("wgmma, wide values under a mask", "sm_90a", "wgmma:m128n64s2qr0o4re0p2", wide_values, kWide),
       autotune::InputKind::normal);
  with(subject("wgmma, wide values, keys shared out", "sm_90a", "wgmma:m64n32s3qr0pp0re0p0sp2", wide_values,
               kLong),
       autotune::InputKind::normal);
  with(subject("mma, rows without keys", "sm_80", "mma:m64n32w4s2", kCausal64, few_keys),
       autotune::InputKind::normal);
  constexpr Problem ragged{.dtype = DType::fp32, .head_dim = 40, .head_dim_v = 24};
  with(subject("mma, fp32, odd sizes", "sm_90", "mma:m32n16w2s1kv1", ragged), autotune::InputKind::normal);
  Subject banks =
      subject("mma, fp32, d64", "sm_80", "mma:m32n32w2s1kv1", {.dtype = DType::fp32, .head_dim = 64});
  banks.conflict_free = true;
  with(std::move(banks), autotune::InputKind::normal);
  with(subject("wgmma, fp32, odd sizes", "sm_90a", "wgmma:m128n32s2op0pp0ov0p0", ragged, kWide),
       autotune::InputKind::normal);
  constexpr Problem wide_fp32{.dtype = DType::fp32, .head_dim = 104, .head_dim_v = 136};
  with(subject("wgmma, fp32, wide values", "sm_90a", "wgmma:m64n16s1qr0op0pp0ov0p0pt1", wide_fp32, kOwnHeads),
       autotune::InputKind::normal);
  Subject silent = subject("mma, fp32, silent keys", "sm_80", "mma:m64n32w4s1kv1", ragged);
  silent.one.silent = 70;
  Subject silent_wgmma = silent;
  silent_wgmma.name = "wgmma, fp32, silent keys";
  silent_wgmma.arch = "sm_90a";
  silent_wgmma.schedule = "wgmma:m64n32s2qr0op0pp0ov0p0";
  with(std::move(silent), autotune::InputKind::normal);
  with(std::move(silent_wgmma), autotune::InputKind::normal);
  with(subject("wgmma, packed heads", "sm_90a", "wgmma:m128n64s2p2", kCausal64, few_queries),
       autotune::InputKind::normal);
  with(subject("wgmma, empty places", "sm_90a", "wgmma:m128n64s2p2", kCausal64, odd_groups),
       autotune::InputKind::normal);
  with(subject("wgmma, empty places, keys shared out", "sm_90a", "wgmma:m64n64s2pp0p0sp2", kCausal64,
               odd_groups),
       autotune::InputKind::normal);
  with(subject("wgmma, packed and long", "sm_90a", "wgmma:m64n64s2pp0", kCausal64, more_queries),
       autotune::InputKind::normal);
  // A megabyte holds four heads of these; short sequences' sections 16, whatever the L2 holds.
  const Shape sections{.batch = 1, .heads = 9, .heads_kv = 9, .seqlen_q = 200, .seqlen_k = 1000};
  const Shape more_sections{.batch = 1, .heads = 36, .heads_kv = 36, .seqlen_q = 70, .seqlen_k = 1000};
  with(subject("wgmma, sections", "sm_90a", "wgmma:m128n64s2p2l1", kCausal64, sections),
       autotune::InputKind::normal);
  // Fifteen tiles, and six CTAs, of which a multiprocessor holds three by its shared memory.
  const Shape five_heads{.batch = 1, .heads = 5, .heads_kv = 5, .seqlen_q = 300, .seqlen_k = 300};
  with(subject("wgmma, riffled", "sm_90a", "wgmma:m128n64s2p2", kCausal64, five_heads, 2),
       autotune::InputKind::normal);
  with(subject("mma, sections", "sm_80", "mma:m64n64w4s2", kCausal64, more_sections),
       autotune::InputKind::normal);
  with(subject("mma, peaky", "sm_80", "mma:m64n32w4s2", kFull64), autotune::InputKind::peaky);
  with(subject("wgmma, peaky", "sm_90a", "wgmma:m128n64s2p2", kFull64, kWide), autotune::InputKind::growing);
  Subject one_key =
      subject("wgmma backward, one key of great weight", "sm_90a", "wgmma-backward:m128n128s2", kBackward,
              {.batch = 1, .heads = 2, .heads_kv = 1, .seqlen_q = 200, .seqlen_k = 1});
  one_key.one.scale = 16.0f;  // scores so low that exp(0 - LSE) is infinite
  Subject one_key_mma = one_key;
  one_key_mma.name = "mma backward, one key of great weight";
  one_key_mma.schedule = "mma-backward:m32n64w4s2dq1";
  Subject one_key_split = one_key;
  one_key_split.name = "mma backward, fp32, low scores";
  one_key_split.schedule = "mma-backward:m32n32w4dq1";
  one_key_split.one.problem.dtype = DType::fp32;
  Subject one_key_split_wgmma = one_key_split;
  one_key_split_wgmma.name = "wgmma backward, fp32, low scores";
  one_key_split_wgmma.schedule = "wgmma-backward:m64n64s2";
  with(std::move(one_key), autotune::InputKind::normal);
  with(std::move(one_key_split), autotune::InputKind::normal);
  with(std::move(one_key_split_wgmma), autotune::InputKind::normal);
  with(std::move(one_key_mma), autotune::InputKind::normal);
  Subject outgrown = subject("wgmma, outgrown", "sm_90a", "wgmma:m128n64s2", kFull64, kWide);
  outgrown.one.scale = 8.0f;  // a block's maximum is often 2^127 times what came before
  with(std::move(outgrown), autotune::InputKind::normal);
  Subject endless = subject("wgmma, clusters share out infinite values", "sm_90a",
                            "wgmma:m64n16s4pp0p0sp2ch2", kFull64, kLong, 4);
  endless.one.endless = 200;
  with(std::move(endless), autotune::InputKind::normal);
  with(subject("wgmma, crowd", "sm_90a", "wgmma:m128n64s2", {.dtype = DType::fp16, .head_dim = 64},
               {.batch = 1, .heads = 2, .seqlen_q = 64, .seqlen_k = 500}),
       autotune::InputKind::crowd);
  for (Subject& made : backward_subjects()) subjects.push_back(std::move(made));
  return subjects;
}

}  // namespace flashjit::test
