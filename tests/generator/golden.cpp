// Compares rendered kernels, and how they are launched, with the golden ones in tests/generator/golden;
// --update takes the difference over.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "generator/render.hpp"
#include "tests/runtime/scratch.hpp"

using namespace flashjit;

namespace {

namespace fs = std::filesystem;

struct Golden {
  Problem problem;
  const char* schedule;
  const char* arch;
};

// One of each family and generation of its instructions: what a reviewer wants to see change.
const std::vector<Golden> kGolden{
    {{.dtype = DType::fp32, .head_dim = 64, .causal = true}, "simt:m128n64w4s2", "sm_80"},
    {{.dtype = DType::fp32, .head_dim = 40, .head_dim_v = 72, .lse = false}, "simt:m64n32w4s1pf1", "sm_75"},
    {{.pass = Pass::backward, .dtype = DType::fp32, .head_dim = 64, .causal = true, .deterministic = true},
     "simt-backward:m64n64w4",
     "sm_80"},
    {{.pass = Pass::backward, .dtype = DType::fp32, .head_dim = 40, .head_dim_v = 72},
     "simt-backward:m16n32w4dq1",
     "sm_75"},
    {{.dtype = DType::bf16, .head_dim = 128, .causal = true}, "mma:m128n64w8s2", "sm_80"},
    {{.dtype = DType::fp16, .head_dim = 64}, "mma:m64n64w4s1kv1", "sm_75"},
    {{.dtype = DType::bf16, .head_dim = 256}, "mma:m128n128w8s1kv1p1", "sm_90"},
    {{.dtype = DType::fp32, .head_dim = 64, .causal = true}, "mma:m64n32w4s1kv1", "sm_80"},
    {{.pass = Pass::backward, .dtype = DType::fp32, .head_dim = 64, .causal = true},
     "mma-backward:m32n32w4dq1",
     "sm_80"},
    {{.dtype = DType::bf16, .head_dim = 128, .causal = true}, "wgmma:m128n128s2p2", "sm_90a"},
    {{.dtype = DType::bf16, .head_dim = 256}, "wgmma:m128n64s2qr0o2re0cl2", "sm_90a"},
    {{.dtype = DType::bf16, .head_dim = 256, .causal = true}, "wgmma:m128n64s2qr0o2re0p2", "sm_90a"},
    {{.dtype = DType::fp16, .head_dim = 88, .causal = true}, "wgmma:m192n96s2qr0p2cl2", "sm_90a"},
    {{.dtype = DType::bf16, .head_dim = 128, .causal = true}, "wgmma:m64n128s3pp0p0sp8", "sm_90a"},
    {{.dtype = DType::bf16, .head_dim = 64, .lse = false}, "wgmma:m256n64s4qr0p3", "sm_90a"},
    {{.dtype = DType::fp32, .head_dim = 128, .causal = true}, "wgmma:m128n64s1qr2op0pp0ov0p0", "sm_90a"},
    {{.dtype = DType::fp32, .head_dim = 256}, "wgmma:m128n64s1qr2op0pp0ov0p0sp2", "sm_90a"},
    {{.pass = Pass::backward, .dtype = DType::bf16, .head_dim = 128, .causal = true, .deterministic = true},
     "wgmma-backward:m64n128s2dq2",
     "sm_90a"},
    {{.pass = Pass::backward, .dtype = DType::bf16, .head_dim = 128}, "wgmma-backward:m80n128s2t1", "sm_90a"},
    {{.pass = Pass::backward, .dtype = DType::bf16, .head_dim = 128},
     "wgmma-backward:m64n128s2sp8",
     "sm_90a"},
    {{.pass = Pass::backward, .dtype = DType::bf16, .head_dim = 256}, "wgmma-backward:m64n64s2", "sm_90a"},
    {{.pass = Pass::backward, .dtype = DType::fp32, .head_dim = 72, .head_dim_v = 64, .causal = true},
     "wgmma-backward:m64n64s1",
     "sm_90a"},
    {{.pass = Pass::backward, .dtype = DType::fp32, .head_dim = 64, .deterministic = true},
     "wgmma-backward:m64n64s2dq0",
     "sm_90a"},
};

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What a launch needs to know of a kernel, which its source does not say.
std::string launch_of(const KernelSource& kernel, const char* arch) {
  const Geometry& g = kernel.geometry;
  const auto flags =
      fmt::format("{}{}{}{}{}{}{}", g.pads ? " pads" : "", g.persistent ? " persistent" : "",
                  g.cooperative ? " cooperative" : "", g.dynamic ? " dynamic" : "",
                  g.divides ? " divides" : "", g.packs ? " packs" : "", g.even_shares ? " even_shares" : "");
  std::string text =
      fmt::format("{} {}\n  {} tiles of {} x {}, {} threads, {} bytes, cluster {}, section {}{}\n",
                  kernel.entry, arch, g.grid == Grid::key_tiles ? "key" : "query", g.tile_m, g.tile_n,
                  g.threads, g.shared_bytes, g.cluster, g.section_bytes, flags);
  if (g.piece_bytes != 0) {
    text += fmt::format("  pieces of {} bytes, {} counters, from {} keys on, idle up to {} rows\n",
                        g.piece_bytes, g.counters, g.least_keys, g.idle_rows);
  }
  constexpr const char* kOperands[] = {"q", "k", "v", "o", "dout", "dq", "dk", "dv"};
  for (const TensorMapSpec& map : kernel.maps) {
    text += fmt::format("  map of {}: {} rows x {} columns x {} panels, rows of {} bytes{}\n",
                        kOperands[static_cast<std::size_t>(map.operand)], map.box_rows, map.columns,
                        map.panels, map.row_bytes, map.packs ? ", packs" : "");
  }
  return text;
}

// Shows what diff -u says of the two; false where they are equal.
bool differs(const fs::path& golden, const std::string& text) {
  if (fs::exists(golden) && read(golden) == text) return false;
  const test::ScratchDirectory scratch;
  const fs::path fresh = scratch.write(golden.filename().string(), text);
  const std::string command =
      fmt::format("diff -u --label golden/{0} --label rendered/{0} '{1}' '{2}'", golden.filename().string(),
                  fs::exists(golden) ? golden.string() : "/dev/null", fresh.string());
  (void)std::fflush(stdout);
  if (std::system(command.c_str()) == 0) fmt::print("{} differs, but diff sees nothing\n", golden.string());
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const bool update = argc == 2 && std::string_view(argv[1]) == "--update";
  if (argc > 1 && !update) {
    fmt::print(stderr, "usage: flashjit_golden [--update]\n");
    return 2;
  }
  const fs::path folder = FLASHJIT_GOLDEN_DIR;
  std::vector<fs::path> wanted;
  int changed = 0;
  const auto compare = [&](const std::string& name, const std::string& text) {
    wanted.push_back(folder / name);
    if (!differs(wanted.back(), text)) return;
    ++changed;
    if (update) std::ofstream(wanted.back(), std::ios::binary) << text;
  };
  std::string launches;
  for (const Golden& golden : kGolden) {
    const Schedule schedule = parse_schedule(golden.schedule);
    for (const KernelSource& kernel : render(golden.problem, schedule, target_of(golden.arch))) {
      compare(fmt::format("{}.{}.cu", kernel.entry, golden.arch), kernel.text);
      launches += launch_of(kernel, golden.arch);
    }
    if (const Workspace parts = workspace_of(golden.problem, schedule);
        golden.problem.pass == Pass::backward) {
      const auto copied = [](int bytes, const char* what) {
        return bytes > 0 ? fmt::format(", {} copied as {} bytes", what, bytes) : "";
      };
      launches += fmt::format("  workspace:{}{}{} rows in tiles of {}{}{}\n", parts.dq_sum ? " dq_sum" : "",
                              parts.counters ? " counters" : "", parts.narrow ? " narrow" : "", parts.tile_m,
                              copied(parts.row_parts_bytes, "rows"), copied(parts.key_parts_bytes, "keys"));
    }
  }
  compare("launches.txt", launches);
  for (const auto& item : fs::directory_iterator(folder)) {
    if (std::find(wanted.begin(), wanted.end(), item.path()) != wanted.end()) continue;
    ++changed;
    fmt::print("{} is no longer rendered\n", item.path().string());
    if (update) fs::remove(item.path());
  }
  if (changed == 0 || update) return 0;
  fmt::print("{} golden source(s) differ; if that is meant: {} --update\n", changed, argv[0]);
  return 1;
}
