// What the bytes of a cubin depend on besides its source: the NVRTC that is installed, and what it is told.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

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
// cache ("record" = "toolchain"), filed under the library's stamp. With no NVRTC at all, the toolchain that
// was used last is taken, so that a machine without one still finds what another has compiled for it.
class ToolchainFinder {
 public:
  ToolchainFinder(cache::Store& store, const Target& target, LoadCompiler load);

  const Toolchain& toolchain();   // throws Error{not_found} when there is neither NVRTC nor a record
  runtime::Compiler& compiler();  // throws Error{not_found} when there is no NVRTC

 private:
  [[nodiscard]] Toolchain toolchain_of(const runtime::Compiler& compiler);
  [[nodiscard]] cache::Key record_key(const std::string& stamp) const;
  std::optional<Toolchain> recall(const std::string& stamp);
  void remember(const std::string& stamp, const Toolchain& toolchain);
  runtime::Compiler& loaded();  // the lock is held

  cache::Store& store_;
  const Target& target_;
  const LoadCompiler load_;
  std::mutex mutex_;
  std::shared_ptr<runtime::Compiler> compiler_;
  std::optional<Toolchain> toolchain_;
};

}  // namespace flashjit::api
