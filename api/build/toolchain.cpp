// Records of what NVRTC said of itself, kept in the cache.
#include "api/build/toolchain.hpp"

#include <utility>

#include "flashjit/error.hpp"

namespace flashjit::api {

ToolchainFinder::ToolchainFinder(cache::Store& store, const Target& target, LoadCompiler load)
    : store_(store), target_(target), load_(std::move(load)) {}

const Toolchain& ToolchainFinder::toolchain() {
  const std::lock_guard lock(mutex_);
  if (toolchain_.has_value()) return *toolchain_;
  try {
    const Toolchain here = toolchain_of(loaded());
    if (recall({}) != here) remember({}, here);
    toolchain_ = here;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found) throw;
    toolchain_ = recall({});
    if (!toolchain_.has_value()) throw;
  }
  return *toolchain_;
}

Toolchain ToolchainFinder::toolchain_of(const runtime::Compiler& compiler) {
  // flashjit's own, and so never from a record: an earlier flashjit may have written it.
  std::string options;
  for (const std::string& option : compiler.options(target_)) options += option + "\n";
  const std::string stamp = compiler.stamp();
  if (std::optional<Toolchain> known = stamp.empty() ? std::nullopt : recall(stamp)) {
    known->options = std::move(options);
    return *std::move(known);
  }
  Toolchain asked{.library = stamp.empty() ? compiler.build_id() : stamp,
                  .options = std::move(options),
                  .makes_cubin = compiler.makes_cubin(target_)};
  if (!stamp.empty()) remember(stamp, asked);
  return asked;
}

runtime::Compiler& ToolchainFinder::compiler() {
  const std::lock_guard lock(mutex_);
  return loaded();
}

runtime::Compiler& ToolchainFinder::loaded() {
  if (compiler_ == nullptr) compiler_ = load_();
  return *compiler_;
}

cache::Key ToolchainFinder::record_key(const std::string& stamp) const {
  return {.fields = {{"record", "toolchain"}, {"schema", "1"}, {"arch", target_.arch}, {"library", stamp}}};
}

std::optional<Toolchain> ToolchainFinder::recall(const std::string& stamp) {
  const cache::Hit hit = store_.get(record_key(stamp));
  if (hit.entry == nullptr) return std::nullopt;
  return Toolchain{.library = std::string(hit.entry->section("nvrtc")),
                   .options = std::string(hit.entry->section("options")),
                   .makes_cubin = hit.entry->section("makes") == "cubin"};
}

void ToolchainFinder::remember(const std::string& stamp, const Toolchain& toolchain) {
  store_.put(std::make_shared<const cache::Entry>(
      cache::Entry{.key = record_key(stamp),
                   .sections = {{"nvrtc", toolchain.library},
                                {"options", toolchain.options},
                                {"makes", toolchain.makes_cubin ? "cubin" : "ptx"}}}));
}

}  // namespace flashjit::api
