// TMA's copies of tensors, each through a kernel of a few lines.
#include <doctest/doctest.h>

#include <numeric>

#include "tests/emulator/support.hpp"

using namespace flashjit;
using namespace flashjit::emulator;
using namespace flashjit::emulator::tests;

namespace {

// A kernel that takes a tensor map, an output and two coordinates, and has one mbarrier at the start of
// shared memory and the tile 1024 bytes after it.
std::string tma_kernel(std::string_view body) {
  return fmt::format(
      ".version 8.7\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 smem[];\n"
      ".visible .entry test(.param .align 64 .b8 map[128], .param .u64 out, .param .u32 x, .param .u32 "
      "y)\n{{\n"
      ".reg .b32 %r<64>;\n.reg .b64 %d<32>;\n.reg .pred %p<8>;\n"
      "mov.b64 %d1, map;\ncvta.param.u64 %d30, %d1;\nld.param.u64 %d31, [out];\nld.param.u32 %r1, "
      "[x];\nld.param.u32 %r2, [y];\n"
      "mov.u32 %r30, %tid.x;\nmov.u32 %r29, smem;\nadd.s32 %r28, %r29, 1024;\nmul.wide.u32 %d29, %r30, "
      "16;\nadd.s64 %d29, %d31, %d29;\n"
      "shl.b32 %r27, %r30, 4;\nadd.s32 %r27, %r28, %r27;\nsetp.eq.s32 %p1, %r30, 0;\n{}\nret;\n}}\n",
      body);
}

constexpr const char* kLoad = R"(
@!%p1 bra AFTER;
mbarrier.init.shared::cta.b64 [%r29], 1;
fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r29], BYTES;
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r28], [%d30, {%r1, %r2}], [%r29];
AFTER:
bar.sync 0;
LOOP: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r29], 0;
@!%p2 bra LOOP;
ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r27];
st.global.v4.u32 [%d29], {%r10, %r11, %r12, %r13};
)";

// What threads have just put into the tile, to the box's place.
constexpr const char* kStoreTile = R"(
fence.proxy.async.shared::cta;
bar.sync 0;
@!%p1 bra DONE;
cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%d30, {%r1, %r2}], [%r28];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
DONE:
)";

std::string with_bytes(std::string text, int bytes) {
  return text.replace(text.find("BYTES"), 5, std::to_string(bytes));
}

// A tensor of 16-bit elements that count from 1, and a box of it that is copied to the tile.
struct BoxOfTensor {
  int width, height, columns, rows, swizzle, x, y;

  [[nodiscard]] int pitch() const { return swizzle == 0 ? 2 * columns : swizzle; }
  [[nodiscard]] std::uint16_t element(int r, int c) const {
    const int column = x + c, row = y + r;
    const bool inside = column >= 0 && column < width && row >= 0 && row < height;
    return inside ? static_cast<std::uint16_t>(row * width + column + 1) : std::uint16_t{0};
  }
  // Where the tile has it: bits 4, 5, 6 of the address are exclusive-ored with bits 7, 8, 9.
  [[nodiscard]] std::size_t place(int r, int c) const {
    const int at = r * pitch() + c * 2;
    const int pattern = swizzle == 128 ? 7 : swizzle == 64 ? 3 : swizzle == 32 ? 1 : 0;
    return static_cast<std::size_t>(at ^ ((at >> 7) & pattern) << 4) / 2;
  }
  // The tensor, and an array as large as the tile.
  struct Arrays {
    std::vector<std::uint16_t> tensor, tile;
  };
  // What the kernel makes of both, with a thread for each 16 bytes of the tile.
  [[nodiscard]] Arrays run(const std::string& body, Arrays arrays) const {
    auto device = open_emulated_device({.arch = "sm_90a"});
    const auto upload = [&](const std::vector<std::uint16_t>& values) {
      void* memory = device->allocate(values.size() * 2);
      device->copy_to_device(memory, values.data(), values.size() * 2, nullptr);
      return memory;
    };
    void* memory = upload(arrays.tensor);
    void* out = upload(arrays.tile);
    const auto u32_of = [](int value) { return static_cast<std::uint32_t>(value); };
    runtime::TensorMap map = device->encode({.base = memory,
                                             .size = {u32_of(width), u32_of(height)},
                                             .stride = {u32_of(width) * 2},
                                             .box = {u32_of(columns), u32_of(rows)},
                                             .element_bytes = 2,
                                             .bf16 = true,
                                             .swizzle_bytes = swizzle});
    auto kernel = device->load({.entry = "test", .ptx = tma_kernel(body), .cubin = {}});
    int column = x, row = y;
    void* params[] = {&map, &out, &column, &row};
    device->launch(*kernel, {.grid = 1, .threads = u32_of(pitch() * rows / 16), .shared_bytes = 8192}, params,
                   nullptr);
    device->copy_to_host(arrays.tensor.data(), memory, arrays.tensor.size() * 2, nullptr);
    device->copy_to_host(arrays.tile.data(), out, arrays.tile.size() * 2, nullptr);
    return arrays;
  }
  [[nodiscard]] std::size_t tensor_size() const {
    return static_cast<std::size_t>(width) * static_cast<std::size_t>(height);
  }
  [[nodiscard]] std::size_t tile_size() const { return static_cast<std::size_t>(pitch() * rows) / 2; }
  // The tile after `copy`; `before` runs ahead of it.
  [[nodiscard]] std::vector<std::uint16_t> load(const std::string& before = "",
                                                const std::string& copy = kLoad) const {
    Arrays arrays{std::vector<std::uint16_t>(tensor_size()), std::vector<std::uint16_t>(tile_size())};
    std::iota(arrays.tensor.begin(), arrays.tensor.end(), std::uint16_t{1});
    return run(before + with_bytes(copy, columns * 2 * rows), std::move(arrays)).tile;
  }
};

}  // namespace

TEST_CASE("TMA loads: every swizzle, and zeros outside the tensor") {
  for (int swizzle : {0, 32, 64, 128}) {
    for (const auto& corner : {std::pair{0, 0}, std::pair{8, 3}, std::pair{-4, -2}, std::pair{88, 17}}) {
      const int columns = swizzle == 0 ? 64 : swizzle / 2;
      const BoxOfTensor box{96, 20, columns, 8, swizzle, corner.first, corner.second};
      CAPTURE(swizzle);
      CAPTURE(box.x);
      CAPTURE(box.y);
      const std::vector<std::uint16_t> tile = box.load();
      int wrong = 0;
      for (int r = 0; r < box.rows; ++r) {
        for (int c = 0; c < box.columns; ++c) wrong += tile[box.place(r, c)] != box.element(r, c) ? 1 : 0;
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("a CTA that exits while TMA still writes its shared memory is named") {
  const std::string copy = kLoad;
  const std::string unawaited = copy.substr(0, copy.find("AFTER:")) + "AFTER:\n";
  const BoxOfTensor box{96, 20, 64, 8, 128, 0, 0};
  CHECK_THROWS_WITH_AS(
      (void)box.load("", unawaited),
      doctest::Contains("the CTA exits while a copy to or from its shared memory is on its way"), Error);
}

TEST_CASE("a hint to L2 changes nothing of what arrives") {
  std::string hinted = kLoad;
  const std::string copy = "complete_tx::bytes [%r28], [%d30, {%r1, %r2}], [%r29];";
  hinted.replace(hinted.find(copy), copy.size(),
                 "complete_tx::bytes.L2::cache_hint [%r28], [%d30, {%r1, %r2}], [%r29], %d2;");
  const BoxOfTensor box{96, 20, 64, 8, 128, 88, 17};
  for (const char* policy : {"L2::evict_first.b64 %d2", "L2::evict_last.L2::evict_first.b64 %d2, 0f3F000000"})
    CHECK(box.load(fmt::format("createpolicy.fractional.{};\n", policy), hinted) == box.load());
}

TEST_CASE("a box narrower than its swizzle leaves the end of each row alone") {
  constexpr const char* kMarked = R"(
mov.b32 %r14, 0xabcdabcd;
st.shared.v4.u32 [%r27], {%r14, %r14, %r14, %r14};
fence.proxy.async.shared::cta;
bar.sync 0;
)";
  for (const auto& narrow : {std::pair{128, 40}, std::pair{128, 8}, std::pair{64, 24}, std::pair{32, 8}}) {
    const BoxOfTensor box{64, 8, narrow.second, 8, narrow.first, 16, 0};
    CAPTURE(box.swizzle);
    CAPTURE(box.columns);
    const std::vector<std::uint16_t> tile = box.load(kMarked);
    int wrong = 0;
    for (int r = 0; r < box.rows; ++r) {
      for (int c = 0; c < box.pitch() / 2; ++c) {
        const std::uint16_t expected = c < box.columns ? box.element(r, c) : std::uint16_t{0xabcd};
        wrong += tile[box.place(r, c)] != expected ? 1 : 0;
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("a box narrower than its swizzle is stored from the beginnings of the tile's rows") {
  std::string store = R"(
ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%d29];
st.shared.v4.u32 [%r27], {%r10, %r11, %r12, %r13};
)";
  store += kStoreTile;
  for (const auto& narrow : {std::pair{128, 40}, std::pair{128, 8}, std::pair{64, 24}, std::pair{32, 8}}) {
    for (const auto& corner : {std::pair{16, 0}, std::pair{44, 5}}) {
      const BoxOfTensor box{64, 8, narrow.second, 8, narrow.first, corner.first, corner.second};
      CAPTURE(box.swizzle);
      CAPTURE(box.columns);
      CAPTURE(box.x);
      BoxOfTensor::Arrays arrays{std::vector<std::uint16_t>(box.tensor_size(), 0xabcd),
                                 std::vector<std::uint16_t>(box.tile_size())};
      std::iota(arrays.tile.begin(), arrays.tile.end(), std::uint16_t{1});
      const std::vector<std::uint16_t> got = box.run(store, arrays).tensor;
      int wrong = 0;
      for (int row = 0; row < box.height; ++row) {
        for (int column = 0; column < box.width; ++column) {
          const int r = row - box.y, c = column - box.x;
          const bool stored = r >= 0 && r < box.rows && c >= 0 && c < box.columns;
          const std::uint16_t expected = stored ? arrays.tile[box.place(r, c)] : std::uint16_t{0xabcd};
          const auto at = static_cast<std::size_t>(row) * static_cast<std::size_t>(box.width) +
                          static_cast<std::size_t>(column);
          wrong += got[at] != expected ? 1 : 0;
        }
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("a box narrower than its swizzle must begin a pattern of it") {
  const std::string shifted = "add.s32 %r28, %r28, 128;\nadd.s32 %r27, %r27, 128;\n";
  const BoxOfTensor narrow{64, 8, 40, 8, 128, 0, 0}, whole{64, 8, 64, 8, 128, 0, 0};
  CHECK_THROWS_WITH_AS(
      (void)narrow.load(shifted + "mov.b32 %r14, 0;\nst.shared.v4.u32 [%r27], {%r14, %r14, %r14, %r14};\n"
                                  "fence.proxy.async.shared::cta;\nbar.sync 0;\n"),
      doctest::Contains("the shared address at offset 1152 does not begin a pattern of the "
                        "map's 128-byte swizzle"),
      Error);
  CHECK_NOTHROW((void)whole.load(shifted));
}

TEST_CASE("TMA stores leave out what is outside the tensor") {
  auto device = open_emulated_device({.arch = "sm_90a"});
  constexpr int kWidth = 40, kHeight = 5;
  void* memory = device->allocate(kWidth * kHeight * 2);
  device->fill(memory, 0, kWidth * kHeight * 2, nullptr);
  runtime::TensorMap map = device->encode({.base = memory,
                                           .size = {kWidth, kHeight},
                                           .stride = {kWidth * 2},
                                           .box = {32, 4},
                                           .element_bytes = 2,
                                           .bf16 = true,
                                           .swizzle_bytes = 64});
  std::string body = R"(
mov.b32 %r10, 0x00010001;
st.shared.v4.u32 [%r27], {%r10, %r10, %r10, %r10};
)";
  body += kStoreTile;
  auto kernel = device->load({.entry = "test", .ptx = tma_kernel(body), .cubin = {}});
  void* out = device->allocate(16);
  int x = 16, y = 3;
  void* params[] = {&map, &out, &x, &y};
  device->launch(*kernel, {.grid = 1, .threads = 16, .shared_bytes = 4096}, params, nullptr);
  std::vector<std::uint16_t> got(kWidth * kHeight);
  device->copy_to_host(got.data(), memory, got.size() * 2, nullptr);
  int wrong = 0;
  for (int r = 0; r < kHeight; ++r) {
    for (int c = 0; c < kWidth; ++c)
      wrong += got[static_cast<std::size_t>(r) * kWidth + c] != (c >= 16 && r >= 3 ? 1 : 0) ? 1 : 0;
  }
  CHECK(wrong == 0);
  x = -8;
  CHECK_THROWS_WITH_AS(
      device->launch(*kernel, {.grid = 1, .threads = 16, .shared_bytes = 4096}, params, nullptr),
      doctest::Contains("a box that is stored begins at {-8, 3}, before the tensor does"), Error);
}

TEST_CASE("a TMA store or addition that has read may write later") {
  constexpr const char* kRead = R"(
ld.global.u32 %r11, [%d2];
st.global.u32 [%d31], %r11;
st.shared.u32 [%r28], %r11;
cp.async.bulk.wait_group 0;
ld.global.u32 %r11, [%d2];
st.global.u32 [%d31+4], %r11;
DONE:
)";
  std::string store = kStoreTile;
  const std::string whole = "cp.async.bulk.wait_group 0;\nDONE:\n";
  store.replace(store.find(whole), whole.size(), std::string("cp.async.bulk.wait_group.read 0;") + kRead);
  std::string add = store;
  const std::string copy = "cp.async.bulk.tensor.2d.global.shared::cta";
  add.replace(add.find(copy), copy.size(), "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add");
  for (const std::string& body : {store, add}) {
    int early = 0, late = 0;
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
      auto device = open_emulated_device({.arch = "sm_90a", .seed = seed});
      void* memory = device->allocate(512);
      void* out = device->allocate(8);
      device->fill(memory, 0, 512, nullptr);
      runtime::TensorMap map = device->encode({.base = memory,
                                               .size = {4, 32},
                                               .stride = {16},
                                               .box = {4, 32},
                                               .element_bytes = 4,
                                               .bf16 = false,
                                               .swizzle_bytes = 0});
      auto kernel = device->load({.entry = "test",
                                  .ptx = tma_kernel("ld.global.u64 %d2, [%d31];\nmov.b32 %r10, 0x40e00000;\n"
                                                    "st.shared.v4.u32 [%r27], {%r10, %r10, %r10, %r10};\n" +
                                                    body),
                                  .cubin = {}});
      device->copy_to_device(out, &memory, sizeof memory, nullptr);
      int at = 0;
      void* params[] = {&map, &out, &at, &at};
      device->launch(*kernel, {.grid = 1, .threads = 32, .shared_bytes = 2048}, params, nullptr);
      float got[2];
      device->copy_to_host(got, out, sizeof got, nullptr);
      CHECK(got[1] == 7);
      ++(got[0] == 7 ? early : late);
    }
    CHECK(early > 0);
    CHECK(late > 0);
  }
}

TEST_CASE("a tensor map that is not aligned, or does not tell what is to be added, is named") {
  auto device = open_emulated_device({.arch = "sm_90a"});
  void* memory = device->allocate(1024);
  runtime::TensorMap map = device->encode({.base = memory,
                                           .size = {16, 4},
                                           .stride = {128},
                                           .box = {2, 4},
                                           .element_bytes = 8,
                                           .swizzle_bytes = 0});
  int at = 0;
  const auto run = [&](const std::string& text, std::span<void* const> params) {
    auto kernel = device->load({.entry = "test", .ptx = text, .cubin = {}});
    device->launch(*kernel, {.grid = 1, .threads = 4, .shared_bytes = 2048}, params, nullptr);
  };
  std::string text = tma_kernel(with_bytes(kLoad, 64));
  const std::string aligned = ".param .align 64 .b8 map";
  text.replace(text.find(aligned), aligned.size(), ".param .u64 before, .param .align 8 .b8 map");
  void* shifted[] = {&memory, &map, &memory, &at, &at};
  CHECK_THROWS_WITH_AS(run(text, shifted), doctest::Contains("the tensor map's address is no multiple of 64"),
                       Error);
  std::string add = kStoreTile;
  const std::string store = "cp.async.bulk.tensor.2d.global.shared::cta";
  add.replace(add.find(store), store.size(), "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add");
  void* params[] = {&map, &memory, &at, &at};
  CHECK_THROWS_WITH_AS(run(tma_kernel(add), params), doctest::Contains("reduces elements of 8 bytes"), Error);
}
