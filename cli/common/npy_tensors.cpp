// Attention's tensors as .npy files.
#include "cli/common/npy_tensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <system_error>
#include <utility>

#include "cli/common/npy.hpp"
#include "cli/common/options.hpp"
#include "flashjit/error.hpp"

namespace flashjit::cli {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, message);
}

// One of q, k, v and dout: four dimensions, each of which fits an int.
NpyArray read_tensor(const std::string& flag, const std::string& path) {
  if (path.empty()) refuse(fmt::format("{} is missing: --q, --k and --v go together", flag));
  NpyArray array = read_npy(path);
  if (array.shape.size() != 4) {
    refuse(fmt::format("{} {} has {} dimensions, may have 4: (batch, seqlen, heads, head_dim)", flag, path,
                       array.shape.size()));
  }
  for (const std::int64_t size : array.shape) {
    if (size > std::numeric_limits<int>::max())
      refuse(fmt::format("{} {} has a dimension of {}, may be at most {}", flag, path, size,
                         std::numeric_limits<int>::max()));
  }
  return array;
}

int size_at(const NpyArray& array, std::size_t dimension) {
  return static_cast<int>(array.shape[dimension]);
}

void save_array(const std::string& path, DType dtype, std::vector<std::int64_t> shape, const void* data,
                std::size_t bytes) {
  if (path.empty()) return;
  const auto* first = static_cast<const std::byte*>(data);
  write_npy(path, {.dtype = dtype, .shape = std::move(shape), .bytes = {first, first + bytes}});
}

// Equal for two names of the same file.
fs::path real_name(const std::string& path) {
  std::error_code failed;
  const fs::path absolute = fs::absolute(path);
  const fs::path real = fs::weakly_canonical(absolute, failed);
  return failed ? absolute.lexically_normal() : real;  // a path that can't be resolved keeps its given name
}

// The errno that would prevent writing a file of this name; 0 if no obstacle is visible.
int error_of_writing(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) return EISDIR;
    return ::access(path.c_str(), W_OK) == 0 ? 0 : errno;
  }
  if (errno != ENOENT) return errno;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : ".";
  return ::access(folder.c_str(), W_OK | X_OK) == 0 ? 0 : errno;
}

}  // namespace

void NpyTensors::add_to(CLI::App& verb) {
  const auto add = [&](const char* flag, std::string& path, const char* description) {
    verb.add_option(flag, path, description)->check(has_text())->group("Data");
  };
  add("--q", q_, "queries, a .npy file (batch, seqlen_q, heads, head_dim); decides dtype and sizes");
  add("--k", k_, "keys, a .npy file (batch, seqlen_k, heads_kv, head_dim)");
  add("--v", v_, "values, a .npy file (batch, seqlen_k, heads_kv, head_dim_v)");
  add("--dout", dout_, "backward: the gradient of o, a .npy file as o; random by default");
  add("--out", out_, "write o to this .npy file");
  add("--lse-out", lse_out_, "write the log-sum-exp to this .npy file");
  add("--dq-out", dq_out_, "backward: write the gradient of q to this .npy file");
  add("--dk-out", dk_out_, "backward: likewise, of k");
  add("--dv-out", dv_out_, "backward: likewise, of v");
}

autotune::Inputs NpyTensors::load(Problem& problem, Shape& shape) const {
  NpyArray q = read_tensor("--q", q_);
  NpyArray k = read_tensor("--k", k_);
  NpyArray v = read_tensor("--v", v_);
  const auto same = [&](const NpyArray& a, std::size_t i, const char* flag, const NpyArray& b,
                        std::size_t j) {
    if (a.shape[i] != b.shape[j]) {
      constexpr const char* kNames[] = {"batch", "seqlen", "heads", "head_dim"};
      refuse(fmt::format("{} {} is {}, must be {} as the others have it", flag, kNames[i], a.shape[i],
                         b.shape[j]));
    }
  };
  same(k, 0, "--k", q, 0);
  same(v, 0, "--v", q, 0);
  same(v, 1, "--v", k, 1);
  same(v, 2, "--v", k, 2);
  same(k, 3, "--k", q, 3);
  if (k.dtype != q.dtype)
    refuse(fmt::format("--k is {}, must be {} as --q is", to_string(k.dtype), to_string(q.dtype)));
  if (v.dtype != q.dtype)
    refuse(fmt::format("--v is {}, must be {} as --q is", to_string(v.dtype), to_string(q.dtype)));
  if (k.shape[2] == 0) refuse("--k heads is 0, may be 1 or more");
  // In a Problem, 0 would mean as many as head_dim.
  if (v.shape[3] == 0) refuse("--v head_dim is 0, may be a multiple of 8 from 8 to 256");
  problem.dtype = q.dtype;
  problem.head_dim = size_at(q, 3);
  problem.head_dim_v = size_at(v, 3) == size_at(q, 3) ? 0 : size_at(v, 3);
  shape = {.batch = size_at(q, 0),
           .heads = size_at(q, 2),
           .heads_kv = size_at(k, 2),
           .seqlen_q = size_at(q, 1),
           .seqlen_k = size_at(k, 1)};
  validate(problem);
  validate(shape);
  return {.q = {.bytes = std::move(q.bytes)},
          .k = {.bytes = std::move(k.bytes)},
          .v = {.bytes = std::move(v.bytes)}};
}

std::optional<autotune::HostTensor> NpyTensors::load_dout(const Problem& problem, const Shape& shape) const {
  if (dout_.empty()) return std::nullopt;
  if (problem.pass == Pass::forward)
    refuse("--dout is given, but the forward pass takes no gradient: --pass backward does");
  NpyArray dout = read_tensor("--dout", dout_);
  const std::vector<std::int64_t> wanted = {shape.batch, shape.seqlen_q, shape.heads, problem.value_dim()};
  if (dout.dtype != problem.dtype || dout.shape != wanted) {
    refuse(fmt::format("--dout is {} ({}), must be {} ({}) as o is", to_string(dout.dtype),
                       fmt::join(dout.shape, ", "), to_string(problem.dtype), fmt::join(wanted, ", ")));
  }
  return autotune::HostTensor{.bytes = std::move(dout.bytes), .strides = {}};
}

void NpyTensors::check_outputs(const Problem& problem) const {
  for (const auto& [flag, path] :
       {std::pair{"--dq-out", &dq_out_}, {"--dk-out", &dk_out_}, {"--dv-out", &dv_out_}}) {
    if (!path->empty() && problem.pass == Pass::forward)
      refuse(fmt::format("{} is given, but the forward pass has no gradients: --pass backward has", flag));
  }
  if (!lse_out_.empty() && problem.pass == Pass::forward && !problem.lse)
    refuse("--lse-out is given, but --no-lse leaves it out");
  std::map<fs::path, const char*> named;
  for (const auto& [flag, path] : {std::pair{"--q", &q_}, {"--k", &k_}, {"--v", &v_}, {"--dout", &dout_}}) {
    if (!path->empty()) named.emplace(real_name(*path), flag);  // one file may be several inputs
  }
  for (const auto& [flag, path] : {std::pair{"--out", &out_},
                                   {"--lse-out", &lse_out_},
                                   {"--dq-out", &dq_out_},
                                   {"--dk-out", &dk_out_},
                                   {"--dv-out", &dv_out_}}) {
    if (path->empty()) continue;
    if (const auto [other, is_new] = named.emplace(real_name(*path), flag); !is_new)
      refuse(fmt::format("{} is {}, must be another file than that of {}", flag, *path, other->second));
    if (const int error = error_of_writing(*path); error != 0) {
      throw Error(ErrorCode::io, fmt::format("{} is {}, may be a file that can be written: {}", flag, *path,
                                             std::strerror(error)));
    }
  }
}

void NpyTensors::save(const Problem& problem, const Shape& shape, const AttentionReport& report) const {
  save_array(out_, problem.dtype, {shape.batch, shape.seqlen_q, shape.heads, problem.value_dim()},
             report.o.bytes.data(), report.o.bytes.size());
  save_array(lse_out_, DType::fp32, {shape.batch, shape.heads, shape.seqlen_q}, report.lse.data(),
             report.lse.size() * sizeof(float));
  const auto save_gradient = [&](const std::string& path, int rows, int heads, int dim,
                                 const autotune::HostTensor& tensor) {
    save_array(path, problem.dtype, {shape.batch, rows, heads, dim}, tensor.bytes.data(),
               tensor.bytes.size());
  };
  save_gradient(dq_out_, shape.seqlen_q, shape.heads, problem.head_dim, report.dq);
  save_gradient(dk_out_, shape.seqlen_k, shape.kv_heads(), problem.head_dim, report.dk);
  save_gradient(dv_out_, shape.seqlen_k, shape.kv_heads(), problem.value_dim(), report.dv);
}

}  // namespace flashjit::cli
