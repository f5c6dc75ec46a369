// What the bytes of a cubin depend on besides its source: the installed NVRTC and its options.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/store.hpp"
#include "flashjit/target.hpp"
#include "runtime/compile.hpp"

namespace flashjit::api {

struct Toolchain {
  std::string library;      // the stamp of NVRTC's bytes, or its build id if it has no stamp
  std::string options;      // in canonical form, one per line
  bool makes_cubin = true;  // false: this NVRTC is older than the GPU, and the driver compiles the PTX
  bool operator==(const Toolchain&) const = default;
};

using LoadCompiler = std::function<std::shared_ptr<runtime::Compiler>()>;

// Tells the toolchain without loading NVRTC where possible: what NVRTC once said about itself is a cache
// entry ("record" = "toolchain"), filed under the stamp of the library. A further entry, filed under an empty
// stamp, lists all toolchains that were used, the latest first. Without NVRTC, a kernel of any toolchain on
// that list will do, so that a machine without NVRTC finds what another machine has compiled for it. If two
// processes add to the list at once, one of them may be missing from it until that process compiles again.
class ToolchainFinder {
 public:
  ToolchainFinder(cache::Store& store, const Target& target, LoadCompiler load);

  // The toolchains whose kernels may be used, best first: the installed NVRTC's; without NVRTC, those on the
  // list.
  std::vector<Toolchain> candidates();
  // Both throw Error: not_found if there is no NVRTC, io if none can be looked for.
  Toolchain own();  // of the compiler
  runtime::Compiler& compiler();
  // To be called when a kernel of own() was put into the store: the directory may have lost its list since
  // own() was first asked for.
  void has_compiled();

 private:
  [[nodiscard]] Toolchain toolchain_of(const runtime::Compiler& compiler);
  [[nodiscard]] cache::Key record_key(const std::string& stamp) const;
  // As listed in the cache directories, or in one layer's.
  [[nodiscard]] std::vector<Toolchain> used(std::string_view layer = {});
  void list(const Toolchain& own);  // as the latest that was used with the directory
  void remember(const std::string& stamp, const std::vector<Toolchain>& toolchains);
  // Both need the lock.
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
