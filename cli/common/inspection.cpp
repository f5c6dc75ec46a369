// The figures and artefacts of one kernel.
#include "cli/common/inspection.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "autotune/canonical.hpp"
#include "flashjit/error.hpp"
#include "generator/render.hpp"
#include "generator/schedule.hpp"
#include "runtime/disassemble.hpp"

namespace flashjit::cli {
namespace {

// 83968 → "83,968".
std::string grouped(long long value) {
  std::string digits = std::to_string(value);
  for (std::size_t at = digits.size(); at > 3;) digits.insert(at -= 3, 1, ',');
  return digits;
}

int shared_bytes(const Inspection& inspection) {
  return inspection.code->source.geometry.shared_bytes + inspection.code->report.resources.shared_bytes;
}

// Of a tile of the grid, which a CTA or a cluster works on: its query rows, or its keys.
int tile_size(const Geometry& geometry) {
  return geometry.grid == Grid::key_tiles ? geometry.tile_n : geometry.tile_m;
}

// One line per field of the key. A long field is shown by its size and its own digest, so that two keys can
// be compared by eye.
std::string key_text(const cache::Key& key) {
  constexpr std::size_t kLongest = 200;
  std::string text = fmt::format("{:<12}  {}\n", "digest", key.digest());
  for (const auto& [tag, value] : key.fields) {
    std::string shown = value;
    std::replace(shown.begin(), shown.end(), '\n', ' ');  // lines separate the options
    if (shown.size() > kLongest) {
      shown = fmt::format("({} bytes, {})", grouped(static_cast<long long>(value.size())),
                          cache::Key{.fields = {{tag, value}}}.digest());
    }
    text += fmt::format("{:<12}  {}\n", tag, shown);
  }
  return text;
}

std::string schedule_text(const std::string& name) {
  const Schedule schedule = parse_schedule(name);
  std::string text = fmt::format("{}\n", name);
  for (const ScheduleField& field : fields_of(pass_of(schedule), family_of(schedule))) {
    text += fmt::format("{:<3} {:<13} {:>5}  {}\n", field.letters, field.name, get(schedule, field.name),
                        field.meaning);
  }
  return text;
}

}  // namespace

std::vector<Inspection> inspect(EngineState& state, const Problem& problem, const Shape& shape,
                                const PlanOptions& options) {
  validate(problem);
  std::string note;
  const auto [choice, plan] = state.choose(autotune::canonical(problem), shape, options, note);
  std::vector<Inspection> inspections;
  for (const api::KernelCodePointer& code : plan->kernels) {
    Inspection inspection{.target = state.device().target(),
                          .schedule = to_string(choice.schedule),
                          .choice = choice.why,
                          .note = note,
                          .code = code,
                          .has_cubin = false,
                          .occupancy = {}};
    inspection.has_cubin = !inspection.code->entry->section("cubin").empty();
    if (inspection.has_cubin) {
      inspection.occupancy =
          runtime::occupancy(inspection.target, inspection.code->report.resources.registers,
                             inspection.code->source.geometry.threads, shared_bytes(inspection));
    }
    inspections.push_back(std::move(inspection));
  }
  return inspections;
}

std::vector<Inspection> sketch(EngineState& state, const Problem& problem, const Shape& shape,
                               const PlanOptions& options) {
  validate(problem);
  const Problem asked = autotune::canonical(problem);
  const api::Choice given = state.chooser().preferred(asked, shape, options).value();
  const Target& target = state.device().target();
  std::vector<Inspection> inspections;
  for (KernelSource& source : render(asked, given.schedule, target, state.templates())) {
    inspections.push_back(
        {.target = target,
         .schedule = to_string(given.schedule),
         .choice = given.why,
         .note = {},
         .code = std::make_shared<const api::KernelCode>(api::KernelCode{.source = std::move(source)}),
         .occupancy = {}});
  }
  return inspections;
}

const Inspection& find_kernel(const std::vector<Inspection>& inspections, const std::string& kernel) {
  std::string known;
  for (std::size_t i = 0; i < inspections.size(); ++i) {
    const std::string& entry = inspections[i].code->source.entry;
    if (kernel == std::to_string(i) || entry == kernel || entry.ends_with("_" + kernel))
      return inspections[i];
    known += fmt::format("\n  {}  {}", i, entry);
  }
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("kernel is \"{}\", may be the number, name or end of the name of one of{}", kernel, known));
}

std::vector<std::pair<std::string, std::string>> rows(const Inspection& inspection) {
  const api::Report& report = inspection.code->report;
  const runtime::Resources& resources = report.resources;
  const Geometry& geometry = inspection.code->source.geometry;
  std::vector<std::pair<std::string, std::string>> rows{
      {"kernel", inspection.code->source.entry},
      {"schedule", fmt::format("{} ({})", inspection.schedule, inspection.choice)},
      {"target", fmt::format("{}, NVRTC {}", report.arch, report.nvrtc)},
      {geometry.cluster > 1 ? "cluster" : "CTA",
       fmt::format("{} {}, {}{} threads", tile_size(geometry),
                   geometry.grid == Grid::key_tiles ? "keys" : "query rows",
                   geometry.cluster > 1 ? fmt::format("{} CTAs of ", geometry.cluster) : "",
                   geometry.threads)},
  };
  if (!inspection.note.empty()) rows.insert(rows.begin() + 2, {"note", inspection.note});
  if (inspection.has_cubin) {
    rows.insert(
        rows.end(),
        {{"registers", fmt::format("{} per thread", resources.registers)},
         {"spills", fmt::format("{} B stored, {} B loaded", resources.spill_stores, resources.spill_loads)},
         {"stack", fmt::format("{} B", resources.stack)},
         {"shared", fmt::format("{} B dynamic, {} B static", grouped(geometry.shared_bytes),
                                grouped(resources.shared_bytes))},
         {"barriers", std::to_string(resources.barriers)},
         {"code", fmt::format("{} B", grouped(resources.code_bytes))},
         {"occupancy", fmt::format("{} CTA{} and {} of {} warps per multiprocessor ({:.1f} %)",
                                   inspection.occupancy.ctas, inspection.occupancy.ctas == 1 ? "" : "s",
                                   inspection.occupancy.warps, inspection.occupancy.most_warps,
                                   100.0 * inspection.occupancy.warps / inspection.occupancy.most_warps)},
         {"limited by", inspection.occupancy.limiter}});
  } else {
    rows.emplace_back("code",
                      "PTX only: this NVRTC is older than the target, and the driver makes the machine code");
  }
  for (const std::string& warning : resources.warnings) rows.emplace_back("ptxas", warning);
  rows.emplace_back("source", fmt::format("{} lines", std::count(inspection.code->source.text.begin(),
                                                                 inspection.code->source.text.end(), '\n')));
  rows.emplace_back("entry", inspection.code->entry->key.digest());
  rows.emplace_back("from", inspection.code->compiled
                                ? inspection.code->origin
                                : fmt::format("{}, compiled in {:.0f} ms once", inspection.code->origin,
                                              report.compile_ms));
  return rows;
}

nlohmann::json to_json(const Inspection& inspection) {
  const api::Report& report = inspection.code->report;
  const runtime::Resources& resources = report.resources;
  const Geometry& geometry = inspection.code->source.geometry;
  nlohmann::json json{
      {"kernel", inspection.code->source.entry},
      {"problem", report.problem},
      {"schedule", inspection.schedule},
      {"choice", inspection.choice},
      {"arch", report.arch},
      {"nvrtc", report.nvrtc},
      {"grid", geometry.grid == Grid::key_tiles ? "key tiles" : "query tiles"},
      {geometry.grid == Grid::key_tiles ? "keys_per_tile" : "rows_per_tile", tile_size(geometry)},
      {"threads", geometry.threads},
      {"cluster", geometry.cluster},
      {"shared_dynamic", geometry.shared_bytes},
      {"entry", inspection.code->entry->key.digest()},
      {"from", inspection.code->origin},
      {"compile_ms", report.compile_ms},
      {"warnings", resources.warnings}};
  if (!inspection.note.empty()) json["note"] = inspection.note;
  if (inspection.has_cubin) {
    json.update({{"registers", resources.registers},
                 {"spill_stores", resources.spill_stores},
                 {"spill_loads", resources.spill_loads},
                 {"stack", resources.stack},
                 {"shared_static", resources.shared_bytes},
                 {"barriers", resources.barriers},
                 {"code_bytes", resources.code_bytes},
                 {"ctas_per_sm", inspection.occupancy.ctas},
                 {"warps_per_sm", inspection.occupancy.warps},
                 {"most_warps_per_sm", inspection.occupancy.most_warps},
                 {"limited_by", inspection.occupancy.limiter}});
  }
  return json;
}

void check_artefact(const std::string& artefact) {
  for (const char* known : {"source", "ptx", "sass", "cubin", "log", "key", "schedule"}) {
    if (artefact == known) return;
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("emit is \"{}\", may be {}", artefact, kArtefacts));
}

std::string emit(const Inspection& inspection, const std::string& artefact) {
  check_artefact(artefact);
  if (artefact == "source") return inspection.code->source.text;
  if (artefact == "schedule") return schedule_text(inspection.schedule);
  const cache::Entry& entry = *inspection.code->entry;
  if (artefact == "ptx" || artefact == "log") return std::string(entry.section(artefact));
  if (artefact == "key") return key_text(entry.key);
  if (!inspection.has_cubin) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("no {}: this NVRTC is older than {}, and only the driver makes machine code for it",
                    artefact, inspection.target.arch),
        "`pip install nvidia-cuda-nvrtc` gets the newest NVRTC; FLASHJIT_NVRTC names it");
  }
  const std::string_view cubin = entry.section("cubin");
  return artefact == "cubin" ? std::string(cubin) : runtime::disassemble(cubin, runtime::find_nvdisasm());
}

}  // namespace flashjit::cli
