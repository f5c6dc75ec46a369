// The launch path: how many CTAs, and in which order they take tiles.
#include <doctest/doctest.h>

#include "api/launch/forward_call.hpp"
#include "generator/sections.hpp"
#include "tests/api/launch/made_up_kernel.hpp"

namespace flashjit::test {
namespace {

// Tiles off a counter, section by section.
constexpr Geometry kSections{
    .tile_m = 128, .threads = 384, .persistent = true, .dynamic = true, .section_bytes = 32 << 20};

ForwardParams params_of(std::span<void* const> params) {
  return *static_cast<const ForwardParams*>(params.back());
}

// Keeps in `seen` what the latest launch was given.
void watch(FakeDevice& device, ForwardParams& seen) {
  device.execute = [&seen](const std::string&, const runtime::Launch&, std::span<void* const> params) {
    seen = params_of(params);
  };
}

TEST_CASE("a backward pass's section is heads whose tiles can all be at work, fewer where tiles are short") {
  const auto check = [](const Sections& sections, long long pairs, long long last) {
    CHECK(sections.pairs == pairs);
    CHECK(sections.last == last);
  };
  check(sections_at_once(64, 32, 1, 132), 4, 60);
  check(sections_at_once(10, 32, 1, 132), 4, 8);
  check(sections_at_once(3, 16, 8, 132), 3, 0);     // no more than there are
  check(sections_at_once(8, 200, 1, 132), 1, 7);    // more tiles than CTAs
  check(sections_at_once(256, 8, 1, 132), 2, 254);  // short tiles
  check(sections_at_once(64, 16, 4, 132), 8, 56);   // of four heads each
  check(sections_at_once(5, 1, 1, 132), 1, 4);
}

TEST_CASE("one CTA per tile, or a cluster, or as many as fit at once") {
  FakeDevice device;
  Pointers pointers;
  std::vector<ForwardParams> seen;
  device.execute = [&](const std::string&, const runtime::Launch&, std::span<void* const> params) {
    seen.push_back(params_of(params));
  };
  const auto stream = reinterpret_cast<Stream>(std::uintptr_t{0x1000});
  api::Launcher(device, kernel(device, {.tile_m = 64, .threads = 128, .shared_bytes = 1024}))
      .forward(kShape, pointers.args(), stream);
  api::Launcher(device, kernel(device, {.tile_m = 64, .threads = 128, .persistent = true}, {}, 2))
      .forward(kShape, pointers.args(), stream);
  Shape large = kShape;
  large.batch = 100;
  api::Launcher(device, kernel(device, {.tile_m = 64, .threads = 128, .persistent = true}, {}, 2))
      .forward(large, pointers.args(), stream);
  api::Launcher(device, kernel(device, {.tile_m = 64, .threads = 256, .cluster = 2}))
      .forward({.batch = 1, .heads = 1, .seqlen_q = 65, .seqlen_k = 9}, pointers.args(), stream);
  api::Launcher(device, kernel(device, {.tile_m = 64, .threads = 256, .cluster = 2}))
      .forward({.batch = 1, .heads = 1, .seqlen_q = 1, .seqlen_k = 9}, pointers.args(), stream);
  api::Launcher(device, kernel(device, {.tile_m = 64, .threads = 512, .cluster = 2, .persistent = true}))
      .forward(large, pointers.args(), stream);
  const auto launches = device.launches();
  REQUIRE(launches.size() == 6);
  CHECK(launches[0].launch.grid == 3 * 4 * 2);
  CHECK(launches[0].launch.threads == 128);
  CHECK(launches[0].launch.shared_bytes == 1024);
  CHECK(launches[0].stream == stream);
  CHECK(seen[0].tiles_m == 3);
  CHECK(seen[0].tile_counter == nullptr);
  CHECK(launches[1].launch.grid == 24);
  CHECK(launches[2].launch.grid == static_cast<std::uint32_t>(device.target().sm_count) * 2);
  CHECK(launches[3].launch.grid == 4);  // two tiles, a cluster each
  CHECK(launches[4].launch.grid == 2);
  CHECK(launches[4].launch.cluster == 2);
  CHECK(launches[5].launch.grid == static_cast<std::uint32_t>(device.target().sm_count) / 2 * 2);
}

TEST_CASE("tiles of one length are dealt in even waves; others, or off a counter, to all that fit at once") {
  FakeDevice device;
  Pointers pointers;
  device.execute = [](const std::string&, const runtime::Launch&, std::span<void* const>) {};
  const auto at_once = static_cast<std::uint32_t>(device.target().sm_count);
  const auto grid = [&](bool causal, int seqlen_q, bool dynamic) {
    auto plan = kernel(device, {.tile_m = 64, .threads = 128, .persistent = true, .dynamic = dynamic});
    std::const_pointer_cast<api::LoadedPlan>(plan)->problem.causal = causal;
    const Shape shape{
        .batch = static_cast<int>(at_once) + 10, .heads = 1, .seqlen_q = seqlen_q, .seqlen_k = 200};
    api::Launcher(device, plan).forward(shape, pointers.args(), nullptr);
    return device.launches().back().launch.grid;
  };
  CHECK(grid(false, 64, false) == at_once / 2 + 5);
  CHECK(grid(true, 64, false) == at_once / 2 + 5);  // of one tile a head, all see as many keys
  CHECK(grid(true, 65, false) == at_once);
  CHECK(grid(false, 64, true) == at_once);
}

TEST_CASE(
    "sections: small ones of short sequences, and a longer last one; even ones of long ones, but of few "
    "tiles") {
  FakeDevice device;
  Pointers pointers;
  ForwardParams seen;
  watch(device, seen);
  const api::Launcher launcher(device, kernel(device, kSections));
  const auto lays = [&](const Shape& shape, int section, int last_section) {
    launcher.forward(shape, pointers.args(), nullptr);
    CHECK(seen.section == section);
    CHECK(seen.last_section == last_section);
  };
  REQUIRE(device.target().sm_count == 108);
  // 128 pairs of 4096 keys: 1 MiB each for d 64, so four sections of 32.
  lays({.batch = 8, .heads = 16, .seqlen_q = 4096, .seqlen_k = 4096}, 32, 96);
  // Grouped heads share K and V: half as many bytes.
  lays({.batch = 8, .heads = 16, .heads_kv = 8, .seqlen_q = 4096, .seqlen_k = 4096}, 64, 64);
  // 10 pairs of 8 MiB: 2.5 sections, of which neither 3 nor 4 would be even.
  lays({.batch = 10, .heads = 1, .seqlen_q = 32768, .seqlen_k = 32768}, 5, 5);
  // 9 pairs of 8 MiB: 2.25 sections, and 3 are the nearest number that is even.
  lays({.batch = 9, .heads = 1, .seqlen_q = 32768, .seqlen_k = 32768}, 3, 6);
  // 5 pairs of 16 MiB, 7 of 16 MiB: none is even, and the last takes the rest.
  lays({.batch = 5, .heads = 1, .seqlen_q = 65536, .seqlen_k = 65536}, 2, 2);
  lays({.batch = 7, .heads = 1, .seqlen_q = 65536, .seqlen_k = 65536}, 2, 4);
  // Up to three waves of tiles fill up beside the longest, all heads' together: 5 of 60 are 2.8.
  lays({.batch = 5, .heads = 1, .seqlen_q = 60 * 128, .seqlen_k = 65536}, 5, 0);
  // 256 pairs of 1024 keys, 256 KiB and 8 tiles each: 16 to a section, and 24 would do for the last.
  lays({.batch = 16, .heads = 16, .seqlen_q = 1024, .seqlen_k = 1024}, 16, 224);
  // 128 of 2048 keys: 8 to a section, 12 would do for the last.
  lays({.batch = 8, .heads = 16, .seqlen_q = 2048, .seqlen_k = 2048}, 8, 112);
  // Few tiles beside the multiprocessors: all of them are the last section.
  lays({.batch = 4, .heads = 16, .seqlen_q = 128, .seqlen_k = 2048}, 8, 0);
  // No keys.
  lays({.batch = 1, .heads = 3, .seqlen_q = 10, .seqlen_k = 0}, 3, 0);
}

TEST_CASE(
    "a second wave's halves come in turns where a third or fifth wave follows, and all is one section") {
  FakeDevice device;
  Pointers pointers;
  ForwardParams seen;
  watch(device, seen);
  const api::Launcher launcher(device, kernel(device, kSections));
  const auto riffles = [&](int heads, int seqlen) {
    launcher.forward({.batch = 1, .heads = heads, .seqlen_q = seqlen, .seqlen_k = seqlen}, pointers.args(),
                     nullptr);
    return seen.riffled;
  };
  REQUIRE(device.target().sm_count == 108);
  CHECK(riffles(6, 4096) == 0);     // 1.8 waves
  CHECK(riffles(27, 1024) == 0);    // 2
  CHECK(riffles(8, 4096) == 65);    // 2.4
  CHECK(riffles(10, 4096) == 108);  // 3.0, all but 4 tiles
  CHECK(riffles(12, 4096) == 0);    // 3.6
  CHECK(riffles(14, 4096) == 37);   // 4.1
  CHECK(riffles(14, 65536) == 0);   // 14 sections
}

TEST_CASE("few tiles: several clusters to one, with memory for what each has of it") {
  FakeDevice device;
  Pointers pointers;
  ForwardParams seen;
  watch(device, seen);
  const Geometry geometry{.tile_m = 64,
                          .threads = 256,
                          .cluster = 4,
                          .packs = true,
                          .piece_bytes = 4096,
                          .counters = 4,
                          .least_keys = 512,
                          .idle_rows = 64};
  auto plan = kernel(device, geometry);
  std::const_pointer_cast<api::LoadedPlan>(plan)->kernels[0].clusters_at_once = 30;
  const api::Launcher launcher(device, plan);
  const auto launched = [&](const Shape& shape) {
    launcher.forward(shape, pointers.args(), nullptr);
    return device.launches().back().launch.grid;
  };
  const std::size_t before = device.bytes_alive();
  const Shape decode{.batch = 1, .heads = 4, .heads_kv = 1, .seqlen_q = 1, .seqlen_k = 8192};
  // Few rows: half of the clusters that run at once.
  CHECK(launched(decode) == 15 * 4);
  CHECK(seen.clusters == 15);
  CHECK(seen.pieces != nullptr);
  CHECK(seen.tile_counter[0] == 0);
  CHECK(device.bytes_alive() == before + 30 * 4 * 4096);
  const ForwardParams first = seen;
  CHECK(launched(decode) == 15 * 4);
  CHECK(seen.pieces == first.pieces);  // the stream's
  CHECK(seen.tile_counter == first.tile_counter);
  CHECK(device.ordered_allocations() == 0);
  // A graph owns its memory.
  device.captures = true;
  CHECK(launched(decode) == 15 * 4);
  CHECK(seen.pieces != first.pieces);
  CHECK(seen.tile_counter != first.tile_counter);
  CHECK(device.ordered_allocations() == 1);
  device.captures = false;
  // Nor does a plan hold any for streams without end.
  for (std::uintptr_t handle = 1; handle < api::TileCounters::kMostMemories; ++handle)
    launcher.forward(decode, pointers.args(), reinterpret_cast<Stream>(0x100 + handle));
  CHECK(device.ordered_allocations() == 1);
  const std::size_t held = device.bytes_alive();
  launcher.forward(decode, pointers.args(), reinterpret_cast<Stream>(0x1000));
  CHECK(device.ordered_allocations() == 2);
  CHECK(seen.pieces != nullptr);
  CHECK(seen.tile_counter[0] == 0);
  CHECK(device.bytes_alive() == held);
  // As many as keys last for; and as run at once beside other tiles, all of them where there are many rows.
  CHECK(launched({.batch = 1, .heads = 4, .heads_kv = 1, .seqlen_q = 1, .seqlen_k = 2000}) == 3 * 4);
  CHECK(launched({.batch = 2, .heads = 2, .heads_kv = 2, .seqlen_q = 1, .seqlen_k = 8192}) == 4 * 3 * 4);
  CHECK(launched({.batch = 1, .heads = 1, .seqlen_q = 128, .seqlen_k = 8192}) == 2 * 15 * 4);
  // One cluster to a tile.
  CHECK(launched({.batch = 20, .heads = 1, .seqlen_q = 1, .seqlen_k = 8192}) == 20 * 4);
  CHECK(seen.clusters == 1);
  CHECK(launched({.batch = 1, .heads = 1, .seqlen_q = 1, .seqlen_k = 0}) == 4);
}

TEST_CASE("a launch that stopped half-way leaves the next one zeros") {
  FakeDevice device;
  Pointers pointers;
  const api::Launcher launcher(device, kernel(device, kSections));
  const auto stream = reinterpret_cast<Stream>(std::uintptr_t{0x1000});
  bool stops = true;
  device.execute = [&](const std::string&, const runtime::Launch&, std::span<void* const> params) {
    int* const counter = params_of(params).tile_counter;
    CHECK(counter[0] == 0);
    CHECK(counter[1] == 0);
    if (!stops) return;
    counter[0] = counter[1] = 7;
    throw Error(ErrorCode::device, "it fell over");
  };
  CHECK_THROWS_WITH_AS(launcher.forward(kShape, pointers.args(), stream), "it fell over", Error);
  stops = false;
  launcher.forward(kShape, pointers.args(), stream);
  CHECK(device.launches().size() == 1);
}

TEST_CASE("too many tiles: the message names the caller's shape, however the tiles see it") {
  FakeDevice device;
  Pointers pointers;
  const api::Launcher launcher(device, kernel(device, {.tile_m = 64, .threads = 128, .packs = true}));
  const Shape shape{.batch = 1 << 30, .heads = 32, .heads_kv = 1, .seqlen_q = 4, .seqlen_k = 8};
  try {
    launcher.forward(shape, pointers.args(), nullptr);
    FAIL("launched");
  } catch (const Error& error) {
    CAPTURE(error.message());
    CHECK(error.message().find("shape " + describe(shape) + " has ") == 0);
  }
}

}  // namespace
}  // namespace flashjit::test
