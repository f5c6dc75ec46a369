// What the bytes of a cubin depend on besides its source: the NVRTC that is installed, and what it is told.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cache/store.hpp"
#include "flashjit/target.hpp"
#include "runtime/compile.hpp"

namespace flashjit::api {

struct Toolchain {
  std::string library;      // NVRTC's: the stamp of its bytes; where it has none, its build id
  std::string options;      // canonical, one a line
  bool makes_cubin = true;  // false: this NVRTC is older than the GPU and the driver compiles the PTX
  bool operator==(const Toolchain&) const = default;
};

using LoadCompiler = std::function<std::shared_ptr<runtime::Compiler>()>;

// Knows the toolchain without loading NVRTC where it can: what NVRTC once said of itself is an entry of the
// cache ("record" = "toolchain"), filed under the library's stamp. One more, filed under none, lists all that
// were used, the last first: with no NVRTC at all a kernel of any of them will do, so that a machine without
// one still finds what another has compiled for it. Of two processes that add to the list at once one may be
// left out of it, until it starts again.
class ToolchainFinder {
 public:
  ToolchainFinder(cache::Store& store, const Target& target, LoadCompiler load);

  // Whose kernels will do, the best first: NVRTC's own; without NVRTC those of the record, if there is one.
  std::vector<Toolchain> candidates();
  // Both throw Error{not_found} when there is no NVRTC.
  Toolchain own();  // of the compiler
  runtime::Compiler& compiler();

 private:
  [[nodiscard]] Toolchain toolchain_of(const runtime::Compiler& compiler);
  [[nodiscard]] cache::Key record_key(const std::string& stamp) const;
  [[nodiscard]] std::vector<Toolchain> used();  // as the directories' records have it
  void remember(const std::string& stamp, const std::vector<Toolchain>& toolchains);
  // The lock is held.
  runtime::Compiler& loaded();
  const Toolchain& find_own();

  cache::Store& store_;
  const Target& target_;
  const LoadCompiler load_;
  std::mutex mutex_;
  std::shared_ptr<runtime::Compiler> compiler_;
  std::optional<Toolchain> own_;
  std::vector<Toolchain> candidates_;
};

}  // namespace flashjit::api
