// The key of a cache entry, and the steps from a cache miss to a loaded kernel.
#include "api/build/kernel_builder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <utility>

#include "flashjit/error.hpp"

namespace flashjit::api {
namespace {

using namespace std::chrono_literals;

constexpr auto kLockPatience = 10s;  // while another process compiles: longer than nearly every compile takes

constexpr const char* kSchema = "1";

double milliseconds_of(const KernelCode& code) {
  return code.compiled ? code.report.compile_ms : 0;
}

KernelCodePointer out_of(const cache::Hit& hit, KernelSource source) {
  Report report = parse_report(hit.entry->section("report"));
  return std::make_shared<const KernelCode>(KernelCode{.source = std::move(source),
                                                       .entry = hit.entry,
                                                       .origin = std::string(hit.layer),
                                                       .compiled = false,
                                                       .report = std::move(report)});
}

}  // namespace

KernelBuilder::KernelBuilder(runtime::Device& device, cache::Store& store, const TemplateSet& templates,
                             LoadCompiler load_compiler)
    : device_(device),
      store_(store),
      templates_(templates),
      toolchain_(store, device.target(), std::move(load_compiler)) {}

cache::Key KernelBuilder::key_of(const KernelSource& source, const Toolchain& toolchain) const {
  cache::Key key{.fields = {{"schema", kSchema},
                            {"source", source.text},
                            {"options", toolchain.options},
                            {"arch", device_.target().arch},
                            {"nvrtc", toolchain.library},
                            {"append_flags", runtime::nvrtc_append_flags()}}};
  if (source.ptxas != KernelSource{}.ptxas) key.fields.emplace_back("ptxas", fmt::format("{}", source.ptxas));
  // The driver compiles this PTX, and another driver may want other PTX or report other resources.
  if (!toolchain.makes_cubin) key.fields.emplace_back("driver", device_.description());
  return key;
}

const std::string& LoadedPlan::origin() const {
  // The slowest origin counts: compiled before disk or system, these before memory; the longest compile.
  const auto slower = [](const LoadedKernel& a, const LoadedKernel& b) {
    if (milliseconds_of(*a.code) != milliseconds_of(*b.code))
      return milliseconds_of(*a.code) < milliseconds_of(*b.code);
    return a.code->origin == "memory" && b.code->origin != "memory";
  };
  return std::max_element(kernels.begin(), kernels.end(), slower)->code->origin;
}

runtime::Resources PlanCode::resources() const {
  runtime::Resources all;
  for (const KernelCodePointer& kernel : kernels) {
    const runtime::Resources& one = kernel->report.resources;
    all.registers = std::max(all.registers, one.registers);
    all.spill_stores += one.spill_stores;
    all.spill_loads += one.spill_loads;
    all.stack = std::max(all.stack, one.stack);
    all.shared_bytes = std::max(all.shared_bytes, one.shared_bytes);
    all.barriers = std::max(all.barriers, one.barriers);
    all.code_bytes += one.code_bytes;
    all.warnings.insert(all.warnings.end(), one.warnings.begin(), one.warnings.end());
  }
  return all;
}

PlanCode KernelBuilder::code(const Problem& problem, const Schedule& schedule,
                             std::chrono::milliseconds deadline) {
  std::vector<KernelSource> sources = render(problem, schedule, device_.target(), templates_);
  std::vector<std::future<KernelCodePointer>> rest;
  // One thread for each further kernel. Where the process can start no more threads, the deferred policy
  // makes get() do the work in this thread (libstdc++ and libc++ try async first); async alone would throw
  // std::system_error.
  for (std::size_t i = 1; i < sources.size(); ++i) {
    rest.push_back(std::async(std::launch::async | std::launch::deferred, [&, i] {
      return code_of(problem, schedule, std::move(sources[i]), deadline);
    }));
  }
  PlanCode code;
  code.kernels.push_back(code_of(problem, schedule, std::move(sources.front()), deadline));
  for (std::future<KernelCodePointer>& kernel : rest) code.kernels.push_back(kernel.get());
  return code;
}

KernelCodePointer KernelBuilder::code_of(const Problem& problem, const Schedule& schedule,
                                         KernelSource source, std::chrono::milliseconds deadline) {
  for (const Toolchain& toolchain : toolchain_.candidates()) {
    if (const cache::Hit hit = store_.get(key_of(source, toolchain)); hit.entry != nullptr)
      return out_of(hit, std::move(source));
  }
  const cache::Key key = key_of(source, toolchain_.own());
  const cache::FolderLock lock = store_.lock_for_compile(key, kLockPatience);
  if (lock.state() != cache::LockState::unavailable) {  // the holder before us may have compiled it
    if (const cache::Hit hit = store_.get(key); hit.entry != nullptr) return out_of(hit, std::move(source));
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
                .nvrtc = std::move(compiled.build_id),
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
  toolchain_.has_compiled();
  return std::make_shared<const KernelCode>(
      KernelCode{.source = std::move(source),
                 .entry = std::move(entry),
                 .origin = fmt::format("compiled in {:.0f} ms", compiled.milliseconds),
                 .compiled = true,
                 .report = std::move(report)});
}

std::shared_ptr<LoadedPlan> KernelBuilder::load(const Problem& problem, const Schedule& schedule,
                                                PlanCode code) {
  auto loaded = std::make_shared<LoadedPlan>();
  loaded->problem = problem;
  loaded->schedule = schedule;
  for (KernelCodePointer& kernel : code.kernels)
    loaded->kernels.push_back(load_one(problem, schedule, std::move(kernel)));
  return loaded;
}

LoadedKernel KernelBuilder::load_one(const Problem& problem, const Schedule& schedule,
                                     KernelCodePointer code) {
  LoadedKernel loaded{.code = std::move(code)};
  const auto load = [&] {
    const KernelCode& from = *loaded.code;
    // The image only points at the text and the code, which must live as long as the kernel.
    loaded.kernel = device_.load({.entry = from.source.entry,
                                  .ptx = from.entry->section("ptx"),
                                  .cubin = from.entry->section("cubin"),
                                  .shared_bytes = from.source.geometry.shared_bytes,
                                  .origins = from.source.origins});
  };
  // Without NVRTC, a kernel of any toolchain will do: whether one of another than the refused kernel's loads.
  const auto load_another = [&] {
    const KernelCodePointer refused = loaded.code;
    for (const Toolchain& toolchain : toolchain_.candidates()) {
      const cache::Key key = key_of(refused->source, toolchain);
      if (key == refused->entry->key) continue;
      const cache::Hit hit = store_.get(key);
      if (hit.entry == nullptr) continue;
      loaded.code = out_of(hit, refused->source);
      try {
        load();
        return true;
      } catch (const runtime::ImageRefused&) {
      }
    }
    return false;
  };
  const auto rebuild = [&](const runtime::ImageRefused& refused) {
    try {
      const cache::Key key = key_of(loaded.code->source, toolchain_.own());
      loaded.code = compile(problem, schedule, loaded.code->source, key, kCompileDeadline);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::not_found) throw;
      throw refused;  // without NVRTC, why it was needed says more than that it is missing
    }
    load();
  };
  try {
    load();
  } catch (const runtime::ImageRefused& refused) {
    if (loaded.code->compiled) throw;
    if (!load_another()) rebuild(refused);
  }
  const Geometry& geometry = loaded.code->source.geometry;
  loaded.ctas_per_sm = device_.occupancy(*loaded.kernel, geometry.threads, geometry.shared_bytes);
  if (loaded.ctas_per_sm < 1) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{}: not one CTA of {} threads and {} bytes of shared memory fits on a multiprocessor",
                    loaded.code->source.entry, geometry.threads, geometry.shared_bytes));
  }
  if (geometry.piece_bytes != 0) {
    loaded.clusters_at_once = geometry.cluster == 1
                                  ? device_.target().sm_count * loaded.ctas_per_sm
                                  : device_.clusters_at_once(*loaded.kernel, geometry.cluster,
                                                             geometry.threads, geometry.shared_bytes);
  }
  return loaded;
}

}  // namespace flashjit::api
