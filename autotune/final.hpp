// The last stage of a tuning run: the best few are timed again in turns, and one of them wins.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "autotune/runner.hpp"
#include "autotune/stages.hpp"
#include "autotune/tune.hpp"

namespace flashjit::autotune {

class Final {
 public:
  Final(const Effort& effort, Runner& runner, const Stopwatch& watch, Say say)
      : effort_(effort), runner_(runner), watch_(watch), say_(std::move(say)) {}

  // Chooses among candidates that were timed once each. The incumbent (null: none) is a finalist if it is in
  // reach, and stays unless another is clearly faster. Between equals, their places in the search space
  // decide. Candidates that fail now are pruned; throws Error{device} if all do.
  const Candidate& winner(std::vector<Candidate*> candidates, const std::map<std::string, int>& places,
                          Candidate* incumbent);
  [[nodiscard]] bool out_of_time() const { return out_of_time_; }

  // How long a final takes at most, where a launch takes so many milliseconds.
  static double seconds(const Effort& effort, double launch_ms);

 private:
  using Times = std::vector<std::vector<double>>;

  void choose(std::vector<Candidate*>& candidates, Candidate* incumbent);
  void rounds();
  void place_others(const std::vector<Candidate*>& candidates);
  bool round(double pause, double seconds, double then, Times& times, double& took);

  const Effort& effort_;
  Runner& runner_;
  const Stopwatch& watch_;
  const Say say_;
  std::vector<Candidate*> finalists_;
  double lift_ = 1;  // mean ratio of finalists' times in rounds to their timings before
  bool out_of_time_ = false;
};

}  // namespace flashjit::autotune
