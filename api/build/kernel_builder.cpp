// The key of an entry, and the way from a miss to a loaded kernel.
#include "api/build/kernel_builder.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <utility>

#include "flashjit/error.hpp"

namespace flashjit::api {
namespace {

using namespace std::chrono_literals;

constexpr auto kLockPatience = 10s;  // another process is at it: longer than nearly every compile

constexpr const char* kSchema = "1";

KernelSource render_one(const Problem& problem, const Schedule& schedule, const Target& target,
                        const TemplateSet& templates) {
  std::vector<KernelSource> kernels = render(problem, schedule, target, templates);
  if (kernels.size() != 1) {
    throw Error(ErrorCode::unsupported,
                fmt::format("{}: only plans of one kernel can be run", describe(problem)));
  }
  return std::move(kernels.front());
}

std::string append_flags() {
  const char* flags = std::getenv("NVRTC_APPEND_FLAGS");
  return flags == nullptr ? std::string() : std::string(flags);
}

}  // namespace

KernelBuilder::KernelBuilder(runtime::Device& device, cache::Store& store, const TemplateSet& templates,
                             LoadCompiler load_compiler)
    : device_(device),
      store_(store),
      templates_(templates),
      toolchain_(store, device.target(), std::move(load_compiler)) {}

cache::Key KernelBuilder::key_of(const KernelSource& source) {
  const Toolchain& toolchain = toolchain_.toolchain();
  cache::Key key{.fields = {{"schema", kSchema},
                            {"source", source.text},
                            {"options", toolchain.options},
                            {"arch", device_.target().arch},
                            {"nvrtc", toolchain.build_id},
                            {"append_flags", append_flags()}}};
  // What the driver makes of the PTX is the driver's: another one may take another PTX, or report otherwise.
  if (!toolchain.makes_cubin) key.fields.emplace_back("driver", device_.description());
  return key;
}

KernelCodePointer KernelBuilder::code(const Problem& problem, const Schedule& schedule,
                                      std::chrono::milliseconds deadline) {
  KernelSource source = render_one(problem, schedule, device_.target(), templates_);
  const cache::Key key = key_of(source);
  const auto out_of = [&](const cache::Hit& hit) {
    Report report = parse_report(hit.entry->section("report"));
    return std::make_shared<const KernelCode>(KernelCode{.source = std::move(source),
                                                         .entry = hit.entry,
                                                         .origin = std::string(hit.layer),
                                                         .compiled = false,
                                                         .report = std::move(report)});
  };
  if (const cache::Hit hit = store_.get(key); hit.entry != nullptr) return out_of(hit);
  const cache::FolderLock lock = store_.lock_for_compile(key, kLockPatience);
  if (lock.waited()) {
    if (const cache::Hit hit = store_.get(key); hit.entry != nullptr) return out_of(hit);
  }
  return compile(problem, schedule, std::move(source), key, deadline);
}

KernelCodePointer KernelBuilder::compile(const Problem& problem, const Schedule& schedule,
                                         KernelSource source, const cache::Key& key,
                                         std::chrono::milliseconds deadline) {
  runtime::Compiled compiled = toolchain_.compiler().compile(source, device_.target(), deadline);
  Report report{.entry = source.entry,
                .problem = describe(problem),
                .schedule = to_string(schedule),
                .arch = device_.target().arch,
                .nvrtc = toolchain_.toolchain().build_id,
                .compile_ms = compiled.milliseconds,
                .resources = std::move(compiled.resources)};
  auto entry = std::make_shared<const cache::Entry>(
      cache::Entry{.key = key,
                   .sections = {{"source", source.text},
                                {"ptx", std::move(compiled.ptx)},
                                {"cubin", std::move(compiled.cubin)},
                                {"log", std::move(compiled.log)},
                                {"report", to_json(report)}}});
  store_.put(entry);
  return std::make_shared<const KernelCode>(
      KernelCode{.source = std::move(source),
                 .entry = std::move(entry),
                 .origin = fmt::format("compiled in {:.0f} ms", compiled.milliseconds),
                 .compiled = true,
                 .report = std::move(report)});
}

std::shared_ptr<LoadedKernel> KernelBuilder::load(const Problem& problem, const Schedule& schedule,
                                                  KernelCodePointer code) {
  auto loaded = std::make_shared<LoadedKernel>();
  loaded->problem = problem;
  loaded->schedule = schedule;
  loaded->code = std::move(code);
  const auto load = [&] {
    const KernelCode& from = *loaded->code;
    // The image only points at the text and the code, which live as long as the kernel.
    loaded->kernel = device_.load({.entry = from.source.entry,
                                   .ptx = from.entry->section("ptx"),
                                   .cubin = from.entry->section("cubin"),
                                   .shared_bytes = from.source.geometry.shared_bytes,
                                   .origins = from.source.origins});
  };
  try {
    load();
  } catch (const Error& refused) {
    if (loaded->code->compiled || refused.code() != ErrorCode::device) throw;
    const cache::Key key = loaded->code->entry->key;
    loaded->code = compile(problem, schedule, loaded->code->source, key, kCompileDeadline);
    load();
  }
  const Geometry& geometry = loaded->code->source.geometry;
  loaded->ctas_per_sm = device_.occupancy(*loaded->kernel, geometry.threads, geometry.shared_bytes);
  if (loaded->ctas_per_sm < 1) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{}: not one CTA of {} threads and {} bytes of shared memory fits on a multiprocessor",
                    loaded->code->source.entry, geometry.threads, geometry.shared_bytes));
  }
  return loaded;
}

}  // namespace flashjit::api
