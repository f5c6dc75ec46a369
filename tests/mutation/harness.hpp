// Runs a case with something broken, in the kernel's PTX or in the templates, and says what noticed.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "generator/render.hpp"
#include "runtime/compile.hpp"
#include "tests/support/attention_case.hpp"
#include "tests/support/gradient_case.hpp"

namespace flashjit::test {

// A kernel with a case that runs most of its code.
struct Subject {
  std::string name;  // of this subject, in reports
  std::string arch;
  std::string schedule;
  AttentionCase one;
  std::vector<Shape> more;     // that the case runs with besides, for code that its shape tells nothing of
  int sm_count = 2;            // few, so that persistent CTAs get several tiles
  bool conflict_free = false;  // a bank conflict in shared memory is a mistake
};

// A subject's inputs and references, of whichever pass it is.
class Trial {
 public:
  explicit Trial(const Subject& subject);
  // Every shape; the first that is not right.
  [[nodiscard]] autotune::Check run(Engine& engine) const;

 private:
  const Subject subject_;
  std::deque<Attention> attentions_;
  std::deque<Gradients> gradients_;
};

// What noticed that something is wrong, if anything did.
struct Catch {
  bool caught = false;
  std::string by;     // "race", "deadlock" … (FindingKind), "wrong result", "bank conflicts", "refused"
  std::string words;  // the first finding, or the error
  std::uint64_t seed = 0;  // that showed it
};

// Every compile of the process, by arch and source: mutants of PTX share one. Threads may ask.
class Compiles {
 public:
  explicit Compiles(std::shared_ptr<runtime::Compiler> compiler) : compiler_(std::move(compiler)) {}
  const runtime::Compiled& get(const KernelSource& source, const Target& target);
  [[nodiscard]] runtime::Compiler& compiler() const { return *compiler_; }

 private:
  std::shared_ptr<runtime::Compiler> compiler_;
  std::mutex mutex_;
  std::map<std::string, runtime::Compiled> known_;
};

// What to do to the PTX that NVRTC made of a source; called for each kernel of a plan.
using EditPtx = std::function<void(const KernelSource& source, std::string& ptx)>;

struct Experiment {
  const Subject* subject = nullptr;
  const Trial* trial = nullptr;            // of the subject's case
  const TemplateSet* templates = nullptr;  // null: the embedded ones
  EditPtx edit;                            // null: none
  std::uint64_t first_seed = 1;
  int seeds = 1;  // tried until one shows something
};

Catch run(const Experiment& experiment, Compiles& compiles);

// One run without checks that counts; the PTX lines that it executed of each kernel.
std::map<std::string, std::set<int>> executed_lines(const Experiment& experiment, Compiles& compiles);

}  // namespace flashjit::test
