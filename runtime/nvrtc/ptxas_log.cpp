// Reads the log of ptxas -v line by line.
#include "runtime/nvrtc/ptxas_log.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <string>

namespace flashjit::runtime {
namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// The number right before `unit` ("168" in "Used 168 registers, …" for " registers"); 0 if there is none.
int number_before(std::string_view line, std::string_view unit) {
  const std::size_t end = line.find(unit);
  if (end == std::string_view::npos) return 0;
  std::size_t start = end;
  while (start > 0 && std::isdigit(static_cast<unsigned char>(line[start - 1])) != 0) --start;
  int value = 0;
  std::from_chars(line.data() + start, line.data() + end, value);
  return value;
}

// "(C7510)": a remark with a number, mostly about wgmma and setmaxnreg.
bool numbered_remark(std::string_view line) {
  const std::size_t at = line.find("(C");
  return at != std::string_view::npos && at + 2 < line.size() &&
         std::isdigit(static_cast<unsigned char>(line[at + 2])) != 0;
}

std::string_view quoted(std::string_view line) {
  const std::size_t start = line.find('\'');
  const std::size_t end = start == std::string_view::npos ? start : line.find('\'', start + 1);
  return end == std::string_view::npos ? std::string_view{} : line.substr(start + 1, end - start - 1);
}

}  // namespace

Resources parse_ptxas_log(std::string_view log, std::string_view entry) {
  Resources resources;
  bool in_entry = true;  // whether the next "Used …" lines are about the entry
  bool properties_of_entry = true;
  while (!log.empty()) {
    const std::size_t end = std::min(log.find('\n'), log.size());
    const std::string_view line = log.substr(0, end);
    log.remove_prefix(std::min(end + 1, log.size()));

    if (contains(line, "Compiling entry function")) {
      in_entry = quoted(line) == entry;
    } else if (const std::size_t at = line.find("Function properties for "); at != std::string_view::npos) {
      properties_of_entry = line.substr(at + 24) == entry;
    } else if (contains(line, " bytes stack frame")) {
      if (properties_of_entry) resources.stack = number_before(line, " bytes stack frame");
      resources.spill_stores += number_before(line, " bytes spill stores");
      resources.spill_loads += number_before(line, " bytes spill loads");
    } else if (in_entry && contains(line, ": Used ")) {
      resources.registers = number_before(line, " registers");
      resources.barriers = number_before(line, " barriers");
      resources.shared_bytes = number_before(line, " bytes smem");
    }
    if (contains(line, "ptxas") && (contains(line, "warning") || numbered_remark(line))) {
      resources.warnings.emplace_back(line);
    }
  }
  return resources;
}

}  // namespace flashjit::runtime
