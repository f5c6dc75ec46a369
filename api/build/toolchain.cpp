// Records of what NVRTC said about itself, kept in the cache.
#include "api/build/toolchain.hpp"

#include <algorithm>
#include <utility>

#include "flashjit/error.hpp"

namespace flashjit::api {
namespace {

// A record has a section for each toolchain. The section's name is the library; its text says what the
// toolchain makes, then the options, one per line.
constexpr std::string_view kCubin = "cubin\n";
constexpr std::string_view kPtx = "ptx\n";

std::pair<std::string, std::string> section_of(const Toolchain& toolchain) {
  return {toolchain.library, std::string(toolchain.makes_cubin ? kCubin : kPtx) + toolchain.options};
}

Toolchain read(const std::pair<std::string, std::string>& section) {
  const auto& [library, text] = section;
  return {.library = library,
          .options = text.substr(text.find('\n') + 1),
          .makes_cubin = text.starts_with(kCubin)};
}

}  // namespace

ToolchainFinder::ToolchainFinder(cache::Store& store, const Target& target, LoadCompiler load)
    : store_(store), target_(target), load_(std::move(load)) {}

std::vector<Toolchain> ToolchainFinder::candidates() {
  const std::lock_guard lock(mutex_);
  if (!candidates_.empty()) return candidates_;  // after a miss, only a compile looks for NVRTC again
  try {
    static_cast<void>(find_own());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found && error.code() != ErrorCode::io) throw;
    candidates_ = used();
  }
  return candidates_;
}

Toolchain ToolchainFinder::own() {
  const std::lock_guard lock(mutex_);
  return find_own();
}

void ToolchainFinder::has_compiled() {
  const std::lock_guard lock(mutex_);
  list(find_own());
}

const Toolchain& ToolchainFinder::find_own() {
  if (!own_.has_value()) {
    const Toolchain own = toolchain_of(loaded());
    list(own);
    candidates_ = {own};
    own_ = own;  // last: if memory ran out above, the next call starts again
  }
  return *own_;
}

Toolchain ToolchainFinder::toolchain_of(const runtime::Compiler& compiler) {
  // These options are flashjit's own. They are never taken from a record, which an older flashjit may have
  // written.
  std::string options;
  for (const std::string& option : compiler.options(target_)) options += option + "\n";
  const std::string stamp = compiler.stamp();
  const cache::Hit hit = stamp.empty() ? cache::Hit{} : store_.get(record_key(stamp));
  Toolchain said;
  if (hit.entry != nullptr && !hit.entry->sections.empty()) {
    said = read(hit.entry->sections.front());
  } else {
    said = {.library = stamp.empty() ? compiler.build_id() : stamp,
            .makes_cubin = compiler.makes_cubin(target_)};
    if (!stamp.empty()) remember(stamp, {said});
  }
  said.options = std::move(options);
  return said;
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
  return {.fields = {{"record", "toolchain"}, {"schema", "2"}, {"arch", target_.arch}, {"library", stamp}}};
}

std::vector<Toolchain> ToolchainFinder::used(std::string_view layer) {
  std::vector<Toolchain> all;
  for (const cache::Hit& hit : store_.get_all(record_key({}))) {
    if (!layer.empty() && hit.layer != layer) continue;
    for (const auto& section : hit.entry->sections) {
      Toolchain toolchain = read(section);
      if (std::find(all.begin(), all.end(), toolchain) == all.end()) all.push_back(std::move(toolchain));
    }
  }
  return all;
}

// The system directory's list is not looked at: it may be gone when the kernels of this directory are needed.
void ToolchainFinder::list(const Toolchain& own) {
  std::vector<Toolchain> all = used("disk");
  if (!all.empty() && all.front() == own) return;
  std::erase(all, own);
  all.insert(all.begin(), own);
  remember({}, all);
}

void ToolchainFinder::remember(const std::string& stamp, const std::vector<Toolchain>& toolchains) {
  cache::Entry record{.key = record_key(stamp), .sections = {}};
  for (const Toolchain& toolchain : toolchains) record.sections.push_back(section_of(toolchain));
  store_.put(std::make_shared<const cache::Entry>(std::move(record)));
}

}  // namespace flashjit::api
