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
    runtime::Compiler& compiler = loaded();
    const std::string stamp = compiler.stamp();
    if (!stamp.empty()) toolchain_ = recall(stamp);
    if (!toolchain_.has_value()) {
      Toolchain asked{
          .build_id = compiler.build_id(), .options = {}, .makes_cubin = compiler.makes_cubin(target_)};
      for (const std::string& option : compiler.options(target_)) asked.options += option + "\n";
      if (!stamp.empty()) remember(stamp, asked);
      remember({}, asked);
      toolchain_ = std::move(asked);
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found) throw;
    toolchain_ = recall({});
    if (!toolchain_.has_value()) throw;
  }
  return *toolchain_;
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
  return Toolchain{.build_id = std::string(hit.entry->section("nvrtc")),
                   .options = std::string(hit.entry->section("options")),
                   .makes_cubin = hit.entry->section("makes") == "cubin"};
}

void ToolchainFinder::remember(const std::string& stamp, const Toolchain& toolchain) {
  store_.put(std::make_shared<const cache::Entry>(
      cache::Entry{.key = record_key(stamp),
                   .sections = {{"nvrtc", toolchain.build_id},
                                {"options", toolchain.options},
                                {"makes", toolchain.makes_cubin ? "cubin" : "ptx"}}}));
}

}  // namespace flashjit::api
