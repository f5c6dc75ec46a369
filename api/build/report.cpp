// Reports to and from JSON.
#include "api/build/report.hpp"

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

namespace flashjit::api {

std::string to_json(const Report& report) {
  const runtime::Resources& r = report.resources;
  const nlohmann::ordered_json json{
      {"entry", report.entry},      {"problem", report.problem},      {"schedule", report.schedule},
      {"arch", report.arch},        {"nvrtc", report.nvrtc},          {"compile_ms", report.compile_ms},
      {"registers", r.registers},   {"spill_stores", r.spill_stores}, {"spill_loads", r.spill_loads},
      {"stack", r.stack},           {"shared_bytes", r.shared_bytes}, {"barriers", r.barriers},
      {"code_bytes", r.code_bytes}, {"warnings", r.warnings},
  };
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Report parse_report(std::string_view text) {
  const auto json = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  Report report;
  if (!json.is_object()) return report;
  const auto read = [&](const char* name, auto& to) {
    const auto found = json.find(name);
    if (found == json.end()) return;
    using Value = std::remove_reference_t<decltype(to)>;
    if constexpr (std::is_same_v<Value, int>) {
      // get_to alone would turn 1e300 into an int, and truncate an integer that is too large for an int.
      const std::int64_t number = found->is_number_integer() ? found->template get<std::int64_t>() : -1;
      if (number >= 0 && number <= std::numeric_limits<int>::max()) to = static_cast<int>(number);
    } else if constexpr (std::is_same_v<Value, double>) {
      if (found->is_number()) found->get_to(to);
    } else {
      if (found->is_string()) found->get_to(to);
    }
  };
  read("entry", report.entry);
  read("problem", report.problem);
  read("schedule", report.schedule);
  read("arch", report.arch);
  read("nvrtc", report.nvrtc);
  read("compile_ms", report.compile_ms);
  runtime::Resources& r = report.resources;
  read("registers", r.registers);
  read("spill_stores", r.spill_stores);
  read("spill_loads", r.spill_loads);
  read("stack", r.stack);
  read("shared_bytes", r.shared_bytes);
  read("barriers", r.barriers);
  read("code_bytes", r.code_bytes);
  if (const auto warnings = json.find("warnings"); warnings != json.end() && warnings->is_array()) {
    for (const auto& warning : *warnings) {
      if (warning.is_string()) r.warnings.push_back(warning.get<std::string>());
    }
  }
  return report;
}

}  // namespace flashjit::api
