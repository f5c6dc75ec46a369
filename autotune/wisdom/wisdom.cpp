// Wisdom in memory: JSON lines to records and back, which record wins, and the ladder.
#include "autotune/wisdom.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <tuple>
#include <unordered_set>

#include "autotune/canonical.hpp"
#include "autotune/json.hpp"
#include "autotune/wisdom/shipped.hpp"
#include "flashjit/error.hpp"
#include "generator/legality.hpp"

namespace flashjit::autotune {
namespace {

constexpr int kFormat = 1;
constexpr std::string_view kEmulator = "emulator of ";  // as it describes itself (emulated_device.cpp)
constexpr int kNeighbours = 2;                          // buckets, each twice the work of the one before
constexpr std::size_t kComplaints = 3;                  // of one text

// Whether one problem's record may guide the other: the 16-bit dtypes cost the same, and LSE costs next to
// nothing.
bool alike(Problem one, Problem two) {
  const auto general = [](Problem problem) {
    problem = canonical(problem);
    if (problem.dtype == DType::bf16) problem.dtype = DType::fp16;
    problem.lse = true;
    return problem;
  };
  return general(one) == general(two);
}

// "b31q16" as 31 and "q16"; a name that does not read like that is its own kind of bucket. Short sequences
// are of one kind, however high a tile they would fill: "b27r3w9" is 27 and "w9".
std::pair<int, std::string_view> parts_of(std::string_view bucket) {
  int power = 0, rows = 0;
  if (!bucket.starts_with('b')) return {0, bucket};
  const char* const end = bucket.data() + bucket.size();
  auto read = std::from_chars(bucket.data() + 1, end, power);
  if (read.ec != std::errc{}) return {0, bucket};
  if (read.ptr != end && *read.ptr == 'r') read = std::from_chars(read.ptr + 1, end, rows);
  return {power, bucket.substr(static_cast<std::size_t>(read.ptr - bucket.data()))};
}

// The distance in powers of two; nullopt when the buckets are of different kinds.
std::optional<int> distance(std::string_view one, std::string_view two) {
  const auto [power_one, kind_one] = parts_of(one);
  const auto [power_two, kind_two] = parts_of(two);
  if (kind_one != kind_two || power_one > 1000 || power_two > 1000 || power_one < 0 || power_two < 0)
    return std::nullopt;
  return std::abs(power_one - power_two);
}

// Takes the first line off the text.
std::string_view take_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.size(), line.size() + 1));
  return line;
}

WisdomRecord record_from(const Json& json) {
  WisdomRecord record;
  record.problem = problem_of(member(json, "problem"));
  record.bucket = text_of(json, "bucket");
  record.gpu = text_of(json, "gpu");
  record.arch = text_of(json, "arch");
  record.schedule = parse_schedule(text_of(json, "schedule"));
  record.effort = effort_of(text_of(json, "effort"));
  record.family = text_of(json, "family");
  record.milliseconds = number_of(json, "milliseconds");
  record.shape = shape_of(member(json, "shape"));
  record.versions.flashjit = text_of(json, "flashjit");
  record.versions.templates = text_of(json, "templates");
  const Json& timings = member(json, "timings");
  if (!timings.is_object()) throw Error(ErrorCode::invalid_argument, "\"timings\" is not an object");
  // Kept as they stand, for people: another version's tuning may have timed schedules that this one does not
  // know.
  for (const auto& [schedule, unused] : timings.items())
    record.timings.emplace_back(schedule, number_of(timings, schedule.c_str()));
  const Json& environment = member(json, "environment");
  if (!environment.is_object()) throw Error(ErrorCode::invalid_argument, "\"environment\" is not an object");
  for (const auto& [name, unused] : environment.items())
    record.environment[name] = text_of(environment, name.c_str());
  return record;
}

Json json_of(const WisdomRecord& record) {
  Json timings = Json::object();
  for (const auto& [schedule, milliseconds] : record.timings) timings[schedule] = milliseconds;
  return {{"problem", to_json(record.problem)},
          {"bucket", record.bucket},
          {"gpu", record.gpu},
          {"arch", record.arch},
          {"schedule", to_string(record.schedule)},
          {"effort", to_string(record.effort)},
          {"family", record.family},
          {"milliseconds", record.milliseconds},
          {"shape", to_json(record.shape)},
          {"flashjit", record.versions.flashjit},
          {"templates", record.versions.templates},
          {"timings", timings},
          {"environment", record.environment}};
}

// The same text for two records exactly if they answer the same question.
std::string question_of(const WisdomRecord& record) {
  return to_line({to_json(canonical(record.problem)), record.bucket, record.gpu, record.arch, record.family});
}

}  // namespace

WisdomRecord record_of(const Problem& problem, const Shape& shape, const Target& target,
                       const std::string& gpu, const TuneResult& result, Tuning effort,
                       const Versions& versions, std::map<std::string, std::string> environment) {
  WisdomRecord record;
  record.problem = canonical(problem);
  record.bucket = bucket_of(problem, shape, target);
  record.gpu = gpu;
  record.arch = target.arch;
  record.schedule = result.best;
  record.effort = effort;
  record.family = result.family;
  record.milliseconds = result.best_ms;
  record.shape = shape;
  record.versions = versions;
  record.environment = std::move(environment);
  for (const Candidate& candidate : result.candidates) {
    if (candidate.in_final_ms > 0)
      record.timings.emplace_back(to_string(candidate.schedule), candidate.in_final_ms);
    if (candidate.schedule == result.best && candidate.clock_mhz > 0) {
      record.environment["clock_mhz"] = fmt::format("{:.0f}", candidate.clock_mhz);
    }
  }
  record.environment["date"] = fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)));
  return record;
}

std::string gpu_of(const std::string& description) {
  return description.substr(0, description.find(", "));
}

bool Wisdom::add_text(std::string_view text, std::string_view name, const Report& report) {
  const Versions nobody;  // of two lines in one text, the one with more effort counts, or the later one
  Wisdom here;
  std::size_t complaints = 0;  // a file that is damaged throughout gets a few messages only
  const auto complain = [&](std::size_t line, std::string_view why) {
    if (++complaints <= kComplaints && report) report(fmt::format("wisdom {}, line {}: {}", name, line, why));
  };
  std::size_t number = 0;
  bool first = true;
  bool has_header = false;
  while (!text.empty()) {
    const std::string_view line = take_line(text);
    ++number;
    if (line.empty()) continue;
    bool whole = false;
    try {
      if (line.size() > kLongestLine) throw Error(ErrorCode::invalid_argument, "longer than a line may be");
      const Json json = from_line(line);
      if (json.is_discarded()) throw Error(ErrorCode::invalid_argument, "not a whole JSON value");
      const bool header = json.is_object() && json.contains("flashjit_wisdom");
      if (header && integer_of(json, "flashjit_wisdom", 0, 1 << 30) != kFormat) {
        complain(number, fmt::format("this is format {}, and {} is known, so that the whole file is left out",
                                     integer_of(json, "flashjit_wisdom", 0, 1 << 30), kFormat));
        return false;
      }
      has_header = has_header || header;
      whole = json.is_object() && !header;
      if (first && !header) complain(number, "the header is missing (records are read all the same)");
      if (!header) here.add(record_from(json), nobody);
    } catch (const Error& error) {
      complain(number, error.message() + "; it is skipped");
      if (whole) here.foreign_.emplace_back(line);
    }
    first = false;
  }
  if (complaints > kComplaints && report)
    report(fmt::format("wisdom {}: {} more such lines", name, complaints - kComplaints));
  if (!first && !has_header && here.records_.empty()) return false;
  add(std::move(here), nobody);
  return true;
}

void Wisdom::add(WisdomRecord record, const Versions& in_hand) {
  std::string question = question_of(record);
  const auto place = places_.find(question);
  if (place == places_.end()) {
    records_.push_back(std::move(record));
    places_.emplace(std::move(question), records_.size() - 1);
    return;
  }
  WisdomRecord& known = records_[place->second];
  const auto worth = [&](const WisdomRecord& one) { return std::pair(one.versions == in_hand, one.effort); };
  // A run that was cut short by its budget does not replace one that was not.
  const bool as_thorough = 2 * record.timings.size() >= known.timings.size();
  if (worth(record) > worth(known) || (worth(record) == worth(known) && as_thorough))
    known = std::move(record);
}

void Wisdom::add(Wisdom other, const Versions& in_hand) {
  for (WisdomRecord& record : other.records_) add(std::move(record), in_hand);
  std::unordered_set<std::string> known(foreign_.begin(), foreign_.end());
  for (std::string& line : other.foreign_) {
    if (known.insert(line).second) foreign_.push_back(std::move(line));
  }
}

std::string Wisdom::to_text(const Versions& versions) const {
  std::string text = to_line({{"flashjit_wisdom", kFormat},
                              {"flashjit", versions.flashjit},
                              {"templates", versions.templates}}) +
                     "\n";
  for (const WisdomRecord& record : records_) text += to_line(json_of(record)) + "\n";
  for (const std::string& line : foreign_) text += line + "\n";
  return text;
}

const Wisdom& shipped_wisdom() {
  static const Wisdom wisdom = [] {
    Wisdom tables;
    for (const ShippedTable& table : shipped_tables()) tables.add_text(table.text, table.path, {});
    return tables;
  }();
  return wisdom;
}

Wisdom shipped_wisdom_for(const Problem& problem) {
  // Members as they stand in a record's line, where keys come in alphabetical order.
  const auto members = [](const Json& json) {
    const std::string line = to_line(json);
    return line.substr(1, line.size() - 2);
  };
  const std::string dims = members({{"head_dim", problem.head_dim}, {"head_dim_v", problem.value_dim()}});
  const std::string pass = members({{"pass", to_string(problem.pass)}});
  Wisdom found;
  for (const ShippedTable& table : shipped_tables()) {
    std::string few;
    for (std::string_view text = table.text; !text.empty();) {
      const std::string_view line = take_line(text);
      const auto holds = [&](const std::string& part) { return line.find(part) != std::string_view::npos; };
      if (few.empty() || (holds(dims) && holds(pass))) few.append(line) += '\n';  // the first is the header
    }
    found.add_text(few, table.path, {});
  }
  return found;
}

std::optional<WisdomChoice> choose(const Wisdom& own, const Wisdom& shipped, const Problem& problem,
                                   const Shape& shape, const Target& target, const std::string& gpu,
                                   const Versions& versions, std::string_view family) {
  // A rung is how far a record is from the question, most important first: other bucket, shipped, bucket
  // distance, other GPU, other problem, other versions. The lowest rung wins. The bucket comes first: what
  // these sizes took on another GPU of the arch tells more than what other sizes take here
  // (docs/performance/wgmma/tile-ends.md).
  using Rung = std::tuple<bool, bool, int, bool, bool, bool>;
  const std::string bucket = bucket_of(problem, shape, target);
  std::optional<Rung> best;
  const WisdomRecord* chosen = nullptr;
  for (const Wisdom* wisdom : {&own, &shipped}) {
    for (const WisdomRecord& record : wisdom->records()) {
      if (record.arch != target.arch || !alike(record.problem, problem)) continue;
      if (record.gpu != gpu && record.gpu.starts_with(kEmulator)) continue;
      if (!family.empty() && to_string(family_of(record.schedule)) != family) continue;
      if (!record.family.empty() && record.family != family) continue;  // the best of one family only
      const auto away = distance(record.bucket, bucket);
      if (!away || (wisdom == &own && *away > kNeighbours)) continue;
      const Rung rung{record.bucket != bucket,
                      wisdom == &shipped,
                      *away,
                      record.gpu != gpu,
                      canonical(record.problem) != canonical(problem),
                      !(record.versions == versions)};
      if ((best && rung >= *best) || !legal(problem, record.schedule, target)) continue;
      best = rung;
      chosen = &record;
    }
  }
  if (chosen == nullptr) return std::nullopt;
  const auto& [other_bucket, from_table, away, other_gpu, other_problem, other_versions] = *best;
  CarryOver lengths(*chosen, problem, shape, target);
  const Schedule& schedule = lengths.schedule_for(shape);
  std::string words = from_table  ? target.arch
                      : other_gpu ? fmt::format("{}, same arch", chosen->gpu)
                                  : "this GPU";
  if (other_bucket) words += fmt::format(", nearest bucket {}", chosen->bucket);
  if (schedule != chosen->schedule) words += ", carried over by the model";
  if (other_problem) words += fmt::format(", for {}", describe(chosen->problem));
  if (!from_table && other_versions) words += ", by other templates";
  return WisdomChoice{.record = *chosen,
                      .lengths = lengths,
                      .schedule = schedule,
                      .words = fmt::format("{} ({})", from_table ? "shipped wisdom" : "wisdom", words),
                      .exact = *best == Rung{}};
}

}  // namespace flashjit::autotune
