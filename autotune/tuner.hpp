// The tuning run: rank, compile, verify, time, drop the hopeless, decide between the best, keep every figure.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "autotune/runner.hpp"
#include "autotune/tune.hpp"
#include "flashjit/engine.hpp"

namespace flashjit::autotune {

// search_space() with predictions: the legal ones first, best prediction first, then those that were pruned.
// family: "mma" keeps only that one; empty: all.
std::vector<Candidate> ranked_space(const Problem& problem, const Shape& shape, const Target& target,
                                    std::string_view family = {});

// For an empty ranked_space(): throws Error{unsupported}, which says for each family why.
[[noreturn]] void refuse_unserved(const Problem& problem, const Target& target, std::string_view family);

struct TuneOptions {
  Tuning effort = Tuning::quick;
  std::chrono::milliseconds budget{0};  // 0: the effort's own: 5 s quick, 30 s full
  std::string family;                   // only this one; empty: all
  // The schedule that a plan takes untuned because it was measured before, here or elsewhere. It is tried
  // whatever the model says of it, and stays unless another is faster by more than the results of a final
  // vary.
  std::optional<Schedule> incumbent = std::nullopt;
  Clock* clock = nullptr;                               // null: the real one
  std::function<void(std::string_view line)> progress;  // a line a second at most, and one for each stage
};

struct TuneResult {
  Schedule best;
  std::string family;                 // as in the options
  double best_ms = 0;                 // 0: a single candidate, which is never timed
  std::vector<Candidate> candidates;  // as ranked_space(), and an incumbent that is not in it, with what
                                      // happened to each; `pruned` says why one is out
  int compiled = 0;
  int timed = 0;
  double seconds = 0;
  bool out_of_time = false;  // the budget ended a stage before its end

  // Whether the budget ended before two were timed: then nothing was compared, and there is nothing to
  // remember.
  [[nodiscard]] bool learnt_nothing() const { return out_of_time && timed < 2; }
};

// Throws Error{unsupported} if nothing is legal, Error{device} with the first candidate's message if none
// survived, and what the runner throws where it cannot go on, such as {not_found} without NVRTC.
TuneResult tune(const Problem& problem, const Shape& shape, const Target& target, Runner& runner,
                const TuneOptions& options);

}  // namespace flashjit::autotune
