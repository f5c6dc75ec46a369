// Keeps what tuning learnt: records in JSON lines, a ladder from this very GPU down to the shipped table,
// atomic merging.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "autotune/tuner.hpp"
#include "autotune/wisdom/carry_over.hpp"
#include "flashjit/engine.hpp"
#include "flashjit/problem.hpp"
#include "flashjit/target.hpp"
#include "generator/schedule.hpp"

namespace flashjit::autotune {

// The versions that measured. A record by other templates still guides, but does not replace a tuning run
// with these.
struct Versions {
  std::string flashjit;   // "0.1.0"
  std::string templates;  // any text that changes with the templates
  bool operator==(const Versions&) const = default;
};

struct WisdomRecord {
  Problem problem;
  std::string bucket;  // of bucket_of()
  std::string gpu;     // "NVIDIA H200"
  std::string arch;    // "sm_90a"
  Schedule schedule;
  Tuning effort = Tuning::quick;
  std::string family;  // the only family that tuning was told to look at; empty: all
  double milliseconds = 0;
  Shape shape;  // that was timed
  Versions versions;
  std::vector<std::pair<std::string, double>>
      timings;  // schedule and milliseconds (Candidate::in_final_ms) of every candidate that was timed
  std::map<std::string, std::string> environment;  // clock, date, what the caller adds: for people
};

// environment: what the caller knows beside the result, such as {"driver", "580.159"}.
WisdomRecord record_of(const Problem& problem, const Shape& shape, const Target& target,
                       const std::string& gpu, const TuneResult& result, Tuning effort,
                       const Versions& versions, std::map<std::string, std::string> environment = {});

// The GPU's name without what changes on it: "NVIDIA H200" of "NVIDIA H200, driver 580.159". An emulator's
// name begins with "emulator of": its times are the model's, and guide no other device.
std::string gpu_of(const std::string& description);

// A rung of the ladder.
struct WisdomChoice {
  WisdomRecord record;
  CarryOver lengths;   // which of the record's schedules other shapes of its bucket take
  Schedule schedule;   // the one for this shape
  std::string words;   // for Origin::choice: "wisdom (this GPU)", "wisdom (nearest bucket b31)", "shipped
                       // wisdom (sm_90a)" …
  bool exact = false;  // this problem, bucket and GPU, by these versions: no need to tune with the record's
                       // effort again
};

using Report = std::function<void(std::string_view line)>;

class Wisdom {
 public:
  // Reads JSON lines, and returns whether the text is wisdom of our format, or empty. A line that is bad in
  // any way is skipped, and the first few such lines are reported with their numbers. A text of another
  // format is left out as a whole; so is one that is no wisdom, having neither a header nor a record. `name`
  // is for the messages.
  bool add_text(std::string_view text, std::string_view name, const Report& report);
  // Where there already is a record of the same question, the one by the versions in hand wins, then the one
  // of higher effort, then the new one.
  void add(WisdomRecord record, const Versions& in_hand);
  // Adds each record of the other in the same way, and the lines that neither can read.
  void add(Wisdom other, const Versions& in_hand);
  [[nodiscard]] const std::vector<WisdomRecord>& records() const { return records_; }
  // The records, and, unchanged, the lines that only another version can read.
  [[nodiscard]] std::string to_text(const Versions& versions) const;

 private:
  std::vector<WisdomRecord> records_;
  std::unordered_map<std::string, std::size_t> places_;  // in records_, by question
  std::vector<std::string> foreign_;
};

// The tables that were compiled in, by arch.
const Wisdom& shipped_wisdom();
// Those of the shipped records that have the problem's pass and head dims: all that choose() may take for the
// problem, and perhaps others. Reading all records would be a third of what a plan from a warm cache costs
// the host.
Wisdom shipped_wisdom_for(const Problem& problem);

// The ladder: this GPU and bucket → another GPU of this arch → shipped table → nearest bucket (within four
// times the work) → the shipped table's nearest; nullopt: ask the model. Only records whose schedule is legal
// for the problem on the target count. A record for the other 16-bit dtype or the other LSE serves where
// there is none for the problem itself. family: "mma" keeps only that one.
std::optional<WisdomChoice> choose(const Wisdom& own, const Wisdom& shipped, const Problem& problem,
                                   const Shape& shape, const Target& target, const std::string& gpu,
                                   const Versions& versions, std::string_view family = {});

// A missing file is empty wisdom; so is a file that cannot be read, which is reported. *short_of, if given,
// becomes true where that is for want of descriptors or memory, so that it may be read later.
Wisdom read_wisdom(const std::filesystem::path& file, const Report& report, bool* short_of = nullptr);

// Puts a file of this name and these bytes into a folder (a directory's descriptor) in one step; returns
// errno, 0 when done. The room above hands in the cache's function, so that a folder's files are written and
// shared by one rule.
using Publish = std::function<int(int folder, const std::string& name, std::string_view bytes)>;

// Reads the file as it now is, adds what was learnt, and puts the result in its place. Writers wait for each
// other for a bounded time. A link stays a link, and a file that is no wisdom of our format stays as it is.
// Returns whether the file was written; where not, why is reported.
bool merge_wisdom(const std::filesystem::path& file, const Wisdom& learnt, const Versions& versions,
                  const Publish& publish, const Report& report);

}  // namespace flashjit::autotune
