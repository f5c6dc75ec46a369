// Bulk copies, TMA and st.async: what they request; async_queue.hpp decides when it happens.
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "emulator/exec/access.hpp"
#include "emulator/machine/tensor_map.hpp"

namespace flashjit::emulator::portable {
namespace {

// The list has the rows of the operands in the order that the CopyJob needs; decoding has added the offsets.
// Ins::x is the CopyJob::Kind, y the Reduction, z the Element. count is the number of tensor coordinates, 0
// for a bulk copy.
enum Slot : u32 { kShared, kGlobal, kBarrier, kSize, kMask, kCoordinates };

u64 slot(const Warp& w, const Ins& i, Slot which, int lane) {
  const Program& program = *w.cta->launch->program;
  const u32 row = program.lists[i.list + which];
  return (program.lists[i.list + kCoordinates + i.count] >> which & 1) != 0 ? w.source<u64>(row)[lane]
                                                                            : w.source<u32>(row)[lane];
}
i64 offset_of(const Warp& w, const Ins& i, Slot which) {
  return static_cast<i32>(w.cta->launch->program->lists[i.list + kCoordinates + i.count + 1 + which]);
}

void issue(Warp& w, const Ins& i, u32 mask) {
  const Program& program = *w.cta->launch->program;
  Cluster& cluster = *w.cta->cluster;
  if (mask != 0) w.held.tell(w, i);
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    auto value = [&](Slot which) { return slot(w, i, which, l) + static_cast<u64>(offset_of(w, i, which)); };
    CopyJob job;
    job.kind = static_cast<CopyJob::Kind>(i.x);
    job.ins = &i;
    job.agent = w.agent;
    job.lane = static_cast<u32>(l);
    job.reduction = static_cast<Reduction>(i.y);
    job.element = static_cast<Element>(i.z & 255);
    const bool loads = job.kind == CopyJob::Kind::tensor_load || job.kind == CopyJob::Kind::bulk_load ||
                       job.kind == CopyJob::Kind::bulk_shared;
    u32 shared = static_cast<u32>(value(kShared));
    job.cta = &cta_of(w, i, shared);
    job.shared = shared;
    if (loads) {
      u32 barrier = static_cast<u32>(value(kBarrier));
      job.barrier_cta = &cta_of(w, i, barrier);
      job.barrier = barrier;
    } else {
      job.group = w.bulk_groups[l];
    }
    if ((i.z & 256) != 0) {
      job.multicast = static_cast<u16>(value(kMask));
      if (job.multicast == 0 || job.multicast >> cluster.ctas.size() != 0) {
        stop(w, i, FindingKind::out_of_bounds, 1u << l,
             fmt::format("multicast to CTAs 0x{:x} of a cluster of {}", job.multicast, cluster.ctas.size()));
      }
    }
    if (i.count != 0) {
      u64 map = value(kGlobal);
      if (map % 64 != 0)
        stop(w, i, FindingKind::misaligned, 1u << l, "the tensor map's address is no multiple of 64");
      if ((map & kWindowMask) == kParamWindow) {
        map &= ~kWindowMask;
        if (map + sizeof(EncodedMap) > program.param_bytes)
          stop(w, i, FindingKind::out_of_bounds, 1u << l, "the tensor map lies outside the parameters");
        map += reinterpret_cast<u64>(w.cta->launch->params);
      } else {
        check_global(w, i, map, 128, 1, static_cast<u32>(l));
      }
      job.map = reinterpret_cast<const EncodedMap*>(at_address(map));
      if (job.map->magic != EncodedMap::kMagic)
        stop(w, i, FindingKind::descriptor, 1u << l,
             "there is no tensor map at this address; Device::encode makes one");
      if (job.map->rank != i.count) {
        stop(w, i, FindingKind::descriptor, 1u << l,
             fmt::format("the tensor map has {} dimensions, the instruction {}", job.map->rank, i.count));
      }
      if (job.reduction !=
          Reduction::none) {  // the map has the element's type; flashjit encodes floats of 2 or 4 bytes
        if (job.map->element_bytes != 2 && job.map->element_bytes != 4) {
          stop(w, i, FindingKind::descriptor, 1u << l,
               fmt::format("reduces elements of {} bytes, but only a tensor map of 2 or 4 tells their type",
                           job.map->element_bytes));
        }
        job.element = job.map->element_bytes == 4 ? Element::f32
                      : job.map->bf16 != 0        ? Element::bf16
                                                  : Element::f16;
      }
      for (u32 k = 0; k < i.count; ++k)
        job.coordinates[k] = static_cast<i32>(w.source<u32>(program.lists[i.list + kCoordinates + k])[l]);
      // A box may start before the tensor when it is read, but not when it is written (CUDA programming
      // guide, "tensor memory access"): an H200 reports an illegal instruction.
      if (const auto begin = std::span(job.coordinates).first(i.count);
          !loads && std::ranges::any_of(begin, [](i64 at) { return at < 0; })) {
        stop(w, i, FindingKind::out_of_bounds, 1u << l,
             fmt::format("a box that is stored begins at {{{}}}, before the tensor does",
                         fmt::join(begin, ", ")));
      }
    } else {
      job.bytes = static_cast<u32>(value(kSize));
      if (job.kind == CopyJob::Kind::bulk_shared) {
        u32 to = static_cast<u32>(value(kGlobal));
        job.to_cta = &cta_of(w, i, to);
        job.to_shared = to;
        check_shared(w, i, *job.to_cta, to, job.bytes, 16, static_cast<u32>(l));
      } else {
        job.global = value(kGlobal);
      }
    }
    w.copy_clock(job.clock, cluster.clock_width);
    w.release();
    cluster.queue.issue(cluster, std::move(job));
  }
}

void bulk_commit(Warp& w, const Ins&, u32 mask) {
  for (u32 m = mask; m != 0; m &= m - 1) ++w.bulk_groups[std::countr_zero(m)];
}
template <bool kReadOnly>
void bulk_wait(Warp& w, const Ins& i, u32 mask) {
  if (mask == 0) return;
  Cluster& cluster = *w.cta->cluster;
  cluster.queue.wait_bulk(cluster, w, mask, static_cast<int>(i.imm), kReadOnly);
}

void prepare_bulk_wait(Decoding& decoding) {
  decoding.ins.imm = decoding.immediate(0);
}

struct Operands {
  const Operand* shared = nullptr;
  const Operand* global = nullptr;  // or the map with its coordinates, or the other shared address
  const Operand* barrier = nullptr;
  const Operand* size = nullptr;
  const Operand* mask = nullptr;
};

void put_slots(Decoding& decoding, const Operands& operands, CopyJob::Kind kind) {
  Ins& ins = decoding.ins;
  Program& program = decoding.program;
  const u32 start = static_cast<u32>(program.lists.size());
  u32 rows[5] = {}, wide = 0, offsets[5] = {};
  auto set = [&](Slot which, const Operand* operand) {
    if (operand == nullptr) return;
    if (operand->kind == Operand::Kind::memory) {
      const Decoding::Address address = decoding.address(*operand);
      rows[which] = address.row;
      wide |= static_cast<u32>(address.wide) << which;
      offsets[which] = static_cast<u32>(static_cast<i32>(address.offset));
    } else {
      rows[which] = decoding.source(*operand, decoding.is_wide(*operand));
      wide |= static_cast<u32>(decoding.is_wide(*operand)) << which;
    }
  };
  set(kShared, operands.shared);
  set(kGlobal, operands.global);
  set(kBarrier, operands.barrier);
  set(kSize, operands.size);
  set(kMask, operands.mask);
  std::vector<u32> coordinates;
  if (operands.global->kind == Operand::Kind::memory && operands.global->parts.size() > 1) {
    for (const Operand& part : operands.global->parts[1].parts)
      coordinates.push_back(decoding.source(part, false));
  }
  std::size_t dimensions = 0;  // of a tensor copy
  for (std::size_t n = 1; n <= 5; ++n) {
    if (decoding.has(fmt::format("{}d", n))) dimensions = n;
  }
  if (coordinates.size() != dimensions)
    decoding.fail(fmt::format("{} coordinates, expected {}", coordinates.size(), dimensions));
  ins.list = start;
  ins.count = static_cast<u8>(coordinates.size());
  program.lists.insert(program.lists.end(), rows, rows + 5);
  program.lists.insert(program.lists.end(), coordinates.begin(), coordinates.end());
  program.lists.push_back(wide);
  program.lists.insert(program.lists.end(), offsets, offsets + 5);
  ins.x = static_cast<u8>(kind);
  if (operands.mask != nullptr) ins.z |= 256;
  static constexpr std::pair<std::string_view, Reduction> kReductions[] = {
      {"add", Reduction::add}, {"min", Reduction::min},  {"max", Reduction::max}, {"and", Reduction::band},
      {"or", Reduction::bor},  {"xor", Reduction::bxor}, {"inc", Reduction::inc}, {"dec", Reduction::dec}};
  for (const auto& [name, how] : kReductions) {
    if (decoding.has(name)) ins.y = static_cast<u8>(how);
  }
  static constexpr std::pair<std::string_view, Element> kElements[] = {
      {"u32", Element::unsigned32}, {"s32", Element::signed32}, {"u64", Element::unsigned64},
      {"s64", Element::signed64},   {"f32", Element::f32},      {"f64", Element::f64},
      {"f16", Element::f16},        {"bf16", Element::bf16},    {"b32", Element::bits32},
      {"b64", Element::bits64}};
  for (const auto& [name, element] : kElements) {
    if (decoding.has(name)) ins.z = static_cast<u16>((ins.z & 256) | static_cast<u16>(element));
  }
}

bool is_multicast(const Decoding& decoding) {
  return decoding.has("multicast::cluster");
}
void prepare_tensor_load(Decoding& d) {
  const std::size_t count = d.operands();
  put_slots(d,
            {&d.operand(0), &d.operand(1), &d.operand(2), nullptr,
             is_multicast(d) && count > 3 ? &d.operand(3) : nullptr},
            CopyJob::Kind::tensor_load);
}
void prepare_tensor_store(Decoding& d) {
  put_slots(d, {&d.operand(1), &d.operand(0)}, CopyJob::Kind::tensor_store);
}
void prepare_bulk_load(Decoding& d) {
  put_slots(
      d,
      {&d.operand(0), &d.operand(1), &d.operand(3), &d.operand(2), is_multicast(d) ? &d.operand(4) : nullptr},
      CopyJob::Kind::bulk_load);
}
void prepare_bulk_store(Decoding& d) {
  put_slots(d, {&d.operand(1), &d.operand(0), nullptr, &d.operand(2)}, CopyJob::Kind::bulk_store);
}
void prepare_bulk_shared(Decoding& d) {
  put_slots(d, {&d.operand(1), &d.operand(0), &d.operand(3), &d.operand(2)}, CopyJob::Kind::bulk_shared);
}
// st.async: a remote store that completes bytes of an mbarrier.
template <class T>
void store_async(Warp& w, const Ins& i, u32 mask) {
  if (mask == 0) return;
  const u32* rows = &w.cta->launch->program->lists[i.list];
  Cluster& cluster = *w.cta->cluster;
  const u32 bytes = sizeof(T) * i.count;
  w.held.tell(w, i);
  std::vector<CopyJob> jobs;
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    u32 to = shared_address_of(w, i, 0, l);
    Cta& cta = cta_of(w, i, to);
    check_shared(w, i, cta, to, bytes, bytes, static_cast<u32>(l));
    u32 barrier = w.source<u32>(i.s[1])[l] + static_cast<u32>(i.rejoin);
    Cta& barrier_cta = cta_of(w, i, barrier);
    check_shared(w, i, barrier_cta, barrier, 8, 8, static_cast<u32>(l));
    if (&barrier_cta != &cta) {
      stop(w, i, FindingKind::illegal, 1u << l,
           fmt::format("st.async to CTA {} of the cluster completes on an mbarrier of CTA {}", cta.rank,
                       barrier_cta.rank));
    }
    if (checking(w) && !cta.state.is_barrier(barrier)) {
      stop(w, i, FindingKind::barrier, 1u << l,
           fmt::format("there is no mbarrier at offset {}", barrier - kSharedBase));
    }
    if (checking(w)) cta.state.begin_write(w, i, w.as_agent(l), Access::remote, to, bytes);
    // Words that lie side by side arrive together: there may be thousands of them.
    const bool joins = !jobs.empty() && jobs.back().cta == &cta && jobs.back().barrier == barrier &&
                       jobs.back().shared + jobs.back().bytes == to;
    if (!joins) {
      CopyJob& job = jobs.emplace_back();
      job.kind = CopyJob::Kind::lane_store;
      job.ins = &i;
      job.agent = w.agent;
      job.lane = static_cast<u32>(l);
      job.cta = job.barrier_cta = &cta;
      job.shared = to;
      job.barrier = barrier;
      w.copy_clock(job.clock, cluster.clock_width);
    }
    CopyJob& job = jobs.back();
    job.bytes += bytes;
    for (u32 k = 0; k < i.count; ++k) {
      const auto* value = reinterpret_cast<const std::byte*>(&w.source<T>(rows[k])[l]);
      job.read.insert(job.read.end(), value, value + sizeof(T));
    }
  }
  for (CopyJob& job : jobs) cluster.queue.issue(cluster, std::move(job));
  w.release();
}
void prepare_store_async(Decoding& decoding) {
  Ins& ins = decoding.ins;
  const Decoding::Address to = decoding.address(decoding.operand(0)),
                          barrier = decoding.address(decoding.operand(2));
  ins.s[0] = to.row;
  ins.wide = to.wide ? 1 : 0;
  ins.imm = to.offset;
  if (barrier.wide) decoding.fail("a 32-bit address is expected");
  ins.s[1] = barrier.row;
  ins.rejoin = static_cast<u32>(static_cast<i32>(barrier.offset));
  const Operand& value = decoding.operand(1);
  const bool wide = decoding.has("b64") || decoding.has("u64") || decoding.has("s64") || decoding.has("f64");
  ins.list = static_cast<u32>(decoding.program.lists.size());
  decoding.append(value, wide);
  const std::size_t count = decoding.program.lists.size() - ins.list;
  const std::size_t expected = decoding.has("v4") ? 4 : decoding.has("v2") ? 2 : 1;
  if (count != expected) decoding.fail(fmt::format("{} values, expected {}", count, expected));
  ins.count = static_cast<u8>(count);
  ins.run = wide ? store_async<u64> : store_async<u32>;
}

constexpr OpClass kAsync = OpClass::async_copy;
const Opcode kRows[] = {
    {"cp.async.bulk.commit_group", "", kAsync, bulk_commit},
    {"cp.async.bulk.wait_group", "i", kAsync, bulk_wait<false>, prepare_bulk_wait},
    {"cp.async.bulk.wait_group.read", "i", kAsync, bulk_wait<true>, prepare_bulk_wait},
    {"cp.async.bulk.tensor.(1d|2d|3d|4d|5d).(shared::cluster|shared::cta).global.tile?.mbarrier::complete_tx:"
     ":bytes."
     "multicast::cluster?.L2::cache_hint?",
     "****?*?", kAsync, issue, prepare_tensor_load},
    {"cp.async.bulk.tensor.(1d|2d|3d|4d|5d).global.shared::cta.tile?.bulk_group.L2::cache_hint?", "***?",
     kAsync, issue, prepare_tensor_store},
    {"cp.reduce.async.bulk.tensor.(1d|2d|3d|4d|5d).global.shared::cta.(add|min|max|inc|dec|and|or|xor).tile?."
     "bulk_group.L2::cache_hint?",
     "***?", kAsync, issue, prepare_tensor_store},
    {"cp.async.bulk.(shared::cluster|shared::cta).global.mbarrier::complete_tx::bytes.multicast::cluster?.L2:"
     ":cache_hint?",
     "*****?*?", kAsync, issue, prepare_bulk_load},
    {"cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes", "****", kAsync, issue,
     prepare_bulk_shared},
    {"cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint?", "****?", kAsync, issue,
     prepare_bulk_store},
    {"cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint?.(add|min|max|inc|dec|and|or|xor)."
     "noftz?."
     "(u32|s32|u64|s64|f32|f64|f16|bf16|b32|b64)",
     "****?", kAsync, issue, prepare_bulk_store},
    {"cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.(add|min|max|inc|dec|and|"
     "or|xor)."
     "(u32|s32|u64|s64|b32|b64)",
     "****", kAsync, issue, prepare_bulk_shared},
    {"st.async.weak?.shared::cluster.mbarrier::complete_tx::bytes.(v2|v4)?.(b32|u32|s32|f32|b64|u64|s64|f64)",
     "***", kAsync, nullptr, prepare_store_async},
};

}  // namespace

std::span<const Opcode> bulk_rows() {
  return kRows;
}

}  // namespace flashjit::emulator::portable
