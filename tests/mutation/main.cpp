// Mutation test: how much of the kernels' synchronisation, and of the templates' arithmetic, the tests that
// need no GPU guard.
//
//   mutation_test [--folder tests/mutation] [--kind sync|templates|alarms] [--subject NAME] [--sample N]
//   [--seed S]
//                 [--seeds N] [--report FILE] [--verbose 1]
//
// sync: each synchronising statement of each subject's PTX is deleted, one at a time, and the kernel runs on
// the emulator under all checks. templates: each mutant of template_mutants.txt. alarms: nothing is broken;
// each subject runs with --seeds seeds, and must be right and clean every time. --sample runs that many,
// drawn by --seed. --report writes the table of who was caught by what. Exits 0 when all are caught (sync: at
// least 98 % of those that somebody would miss, and each survivor stands in survivors.txt with its reason), 1
// when not or when there was nothing to run, 77 without NVRTC.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "flashjit/error.hpp"
#include "tests/mutation/harness.hpp"
#include "tests/mutation/subjects.hpp"
#include "tests/mutation/survivors.hpp"
#include "tests/mutation/sync_mutants.hpp"
#include "tests/mutation/template_mutants.hpp"

namespace {

using namespace flashjit;
using namespace flashjit::test;

struct Options {
  std::filesystem::path folder = FLASHJIT_MUTATION_FOLDER;
  std::string kind = "sync";
  std::string subject;
  std::string report;
  std::size_t sample = 0;
  std::uint64_t seed = 1;
  int seeds = 48;  // of the emulator, for each mutant, until one notices
  bool verbose = false;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (i + 1 == argc) throw Error(ErrorCode::invalid_argument, flag + " has no value");
    const std::string value = argv[i + 1];
    const auto number = [&] {
      if (value.empty() || value.size() > 9 || value.find_first_not_of("0123456789") != std::string::npos)
        throw Error(ErrorCode::invalid_argument, fmt::format("{} is \"{}\", may be a number", flag, value));
      return std::stoi(value);
    };
    if (flag == "--folder")
      options.folder = value;
    else if (flag == "--kind" && (value == "sync" || value == "templates" || value == "alarms"))
      options.kind = value;
    else if (flag == "--subject")
      options.subject = value;
    else if (flag == "--report")
      options.report = value;
    else if (flag == "--sample")
      options.sample = static_cast<std::size_t>(number());
    else if (flag == "--seed")
      options.seed = static_cast<std::uint64_t>(number());
    else if (flag == "--seeds")
      options.seeds = number();
    else if (flag == "--verbose")
      options.verbose = number() != 0;
    else
      throw Error(ErrorCode::invalid_argument, fmt::format("{} {} is no flag of this program", flag, value));
  }
  return options;
}

// The subjects that are wanted; all if --subject names none.
std::vector<Subject> chosen(std::vector<Subject> subjects, const Options& options) {
  if (options.subject.empty()) return subjects;
  std::erase_if(subjects, [&](const Subject& subject) { return subject.name != options.subject; });
  if (subjects.empty()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("--kind {} has no subject \"{}\"", options.kind, options.subject));
  }
  return subjects;
}

// A subject with what all its mutants share.
struct Prepared {
  Subject subject;
  Trial trial;
  std::map<std::string, std::string> ptx;  // by kernel
  std::vector<SyncMutant> mutants;
  std::map<std::string, std::set<int>> executed;
};

// One line of the report.
struct Row {
  std::string subject, what, where, caught;
  bool survived = false;
  auto operator<=>(const Row&) const = default;  // NOLINT(modernize-use-nullptr)
};

void for_each_in_parallel(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> threads;
  std::exception_ptr error;
  std::mutex mutex;
  for (unsigned k = 0; k < std::max(1u, std::thread::hardware_concurrency()); ++k) {
    threads.emplace_back([&] {
      try {
        for (std::size_t at = next++; at < count; at = next++) work(at);
      } catch (...) {
        const std::lock_guard lock(mutex);
        error = std::current_exception();
        next = count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
}

// Or whatever is deleted or changed would count as caught.
void check_right(const Prepared& prepared, Compiles& compiles) {
  const Catch alarm = run({.subject = &prepared.subject, .trial = &prepared.trial}, compiles);
  if (!alarm.caught) return;
  throw Error(ErrorCode::wrong_result, fmt::format("\"{}\" itself is not right: {}: {}",
                                                   prepared.subject.name, alarm.by, alarm.words));
}

template <class T>
void keep_sample(std::vector<T>& all, const Options& options) {
  if (options.sample == 0 || all.size() <= options.sample) return;
  std::mt19937_64 random(options.seed);
  std::shuffle(all.begin(), all.end(), random);
  all.resize(options.sample);
}

void write_report(const Options& options, const std::vector<Row>& rows, const std::string& summary) {
  if (options.report.empty()) return;
  std::map<Row, int> counted;
  for (const Row& row : rows) ++counted[row];
  std::ofstream file(options.report);
  file << "# " << summary << "\n# Made by mutation_test --kind " << options.kind << " --report.\n";
  for (const auto& [row, count] : counted)
    file << fmt::format("{} | {} | {} | {} | {}\n", row.subject, count, row.what, row.where, row.caught);
  if (!file.flush()) throw Error(ErrorCode::io, options.report + " cannot be written");
}

int run_sync(const Options& options) {
  const std::vector<Subject> subjects = chosen(sync_subjects(), options);
  const auto compiler = runtime::load_nvrtc_for({.line_info = true, .ptx_only = true});
  const Survivors survivors(options.folder / "survivors.txt");
  std::vector<std::unique_ptr<Prepared>> all;
  for (const Subject& subject : subjects)
    all.push_back(std::make_unique<Prepared>(Prepared{subject, Trial(subject), {}, {}, {}}));
  std::vector<std::unique_ptr<Compiles>> compiles;
  for (std::size_t k = 0; k < all.size(); ++k) compiles.push_back(std::make_unique<Compiles>(compiler));
  for_each_in_parallel(all.size(), [&](std::size_t k) {
    Prepared& prepared = *all[k];
    check_right(prepared, *compiles[k]);
    Experiment look{.subject = &prepared.subject, .trial = &prepared.trial};
    look.edit = [&](const KernelSource& source, std::string& ptx) {
      if (!prepared.ptx.emplace(source.entry, ptx).second) return;
      const std::vector<SyncMutant> mutants = sync_mutants(ptx, source, embedded_templates());
      prepared.mutants.insert(prepared.mutants.end(), mutants.begin(), mutants.end());
    };
    prepared.executed = executed_lines(look, *compiles[k]);
  });

  struct Job {
    const Prepared* prepared;
    Compiles* compiles;
    const SyncMutant* mutant;
  };
  std::vector<Job> jobs;
  std::size_t uncovered = 0;
  for (std::size_t k = 0; k < all.size(); ++k) {
    for (const SyncMutant& mutant : all[k]->mutants) {
      if (all[k]->executed[mutant.entry].contains(mutant.line))
        jobs.push_back({all[k].get(), compiles[k].get(), &mutant});
      else
        ++uncovered;
    }
  }
  keep_sample(jobs, options);

  std::mutex mutex;
  std::vector<Row> rows;
  std::size_t survived = 0, equivalent = 0, unexplained = 0;
  for_each_in_parallel(jobs.size(), [&](std::size_t k) {
    const Job& job = jobs[k];
    Experiment experiment{.subject = &job.prepared->subject,
                          .trial = &job.prepared->trial,
                          .first_seed = options.seed,
                          .seeds = options.seeds};
    experiment.edit = [&](const KernelSource& source, std::string& ptx) {
      if (source.entry == job.mutant->entry) ptx = without(ptx, *job.mutant);
    };
    const Catch result = run(experiment, *job.compiles);
    const std::string where = fmt::format("{}: {}", job.mutant->file, job.mutant->code);
    const std::lock_guard lock(mutex);
    std::string by = result.by;
    if (!result.caught) {
      ++survived;
      const std::string reason = survivors.reason(job.prepared->subject.name, *job.mutant);
      if (reason.starts_with("equivalent")) ++equivalent;
      by = reason.empty() ? "SURVIVED" : "survives: " + reason;
      if (reason.empty()) {
        ++unexplained;
        std::printf("SURVIVED %s | %s | %s (PTX line %d)\n", job.prepared->subject.name.c_str(),
                    job.mutant->statement.c_str(), where.c_str(), job.mutant->line);
      }
    } else if (options.verbose) {
      std::printf("%s | %s | %s | seed %llu: %s: %s\n", job.prepared->subject.name.c_str(),
                  job.mutant->statement.c_str(), where.c_str(), static_cast<unsigned long long>(result.seed),
                  result.by.c_str(), result.words.substr(0, result.words.find('\n')).c_str());
    }
    std::fflush(stdout);
    rows.push_back({job.prepared->subject.name, job.mutant->statement, where, by, !result.caught});
  });
  const auto percent = [](std::size_t part, std::size_t whole) {
    return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  };
  const std::size_t caught = jobs.size() - survived;
  const double share = percent(caught, jobs.size());
  const std::string summary = fmt::format(
      "{} synchronising statements deleted one at a time: {} caught ({:.1f} %; {:.1f} % without the {} that "
      "are "
      "not missed), {} survive, {} of them without a reason; {} more are never run by their case",
      jobs.size(), caught, share, percent(caught, jobs.size() - equivalent), equivalent, survived,
      unexplained, uncovered);
  std::printf("%s\n", summary.c_str());
  write_report(options, rows, summary);
  // What is not missed where it is left out (survivors.txt says why) is no catch that the checks owe.
  const bool enough = options.sample != 0 || percent(caught, jobs.size() - equivalent) >= 98;
  return !jobs.empty() && enough && unexplained == 0 ? 0 : 1;
}

int run_templates(const Options& options) {
  static_cast<void>(chosen(template_subjects(), options));
  const auto compiler = runtime::load_nvrtc_for({.line_info = true, .ptx_only = true});
  std::vector<TemplateMutant> mutants = read_template_mutants(options.folder / "template_mutants.txt");
  std::map<std::string, std::unique_ptr<Prepared>> subjects;
  for (const Subject& subject : template_subjects())
    subjects[subject.name] = std::make_unique<Prepared>(Prepared{subject, Trial(subject), {}, {}, {}});
  for (const TemplateMutant& mutant : mutants) {
    static_cast<void>(apply(mutant, embedded_templates()));  // a list that no longer fits fails in full
    for (const std::string& name : mutant.subjects) {
      if (!subjects.contains(name))
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("mutant \"{}\": there is no subject \"{}\"", mutant.name, name));
    }
  }
  if (!options.subject.empty()) {
    std::erase_if(mutants, [&](const TemplateMutant& mutant) {
      return std::ranges::find(mutant.subjects, options.subject) == mutant.subjects.end();
    });
    for (TemplateMutant& mutant : mutants) mutant.subjects = {options.subject};
  }
  keep_sample(mutants, options);
  std::set<std::string> used;
  for (const TemplateMutant& mutant : mutants) used.insert(mutant.subjects.begin(), mutant.subjects.end());
  const std::vector<std::string> names(used.begin(), used.end());
  for_each_in_parallel(names.size(), [&](std::size_t k) {
    Compiles compiles(compiler);
    check_right(*subjects.at(names[k]), compiles);
  });
  std::mutex mutex;
  std::vector<Row> rows;
  std::size_t survived = 0;
  for_each_in_parallel(mutants.size(), [&](std::size_t k) {
    const TemplateMutant& mutant = mutants[k];
    const TemplateSet templates = apply(mutant, embedded_templates());
    Compiles compiles(compiler);
    Row row{.subject = mutant.name, .what = mutant.file, .caught = "SURVIVED", .survived = true};
    for (const std::string& name : mutant.subjects) {
      const Prepared& prepared = *subjects.at(name);
      const Catch result = run({.subject = &prepared.subject,
                                .trial = &prepared.trial,
                                .templates = &templates,
                                .edit = {},
                                .first_seed = options.seed,
                                .seeds = options.seeds},
                               compiles);
      if (!result.caught) continue;
      row.where = name;
      row.caught = result.by;
      row.survived = false;
      break;
    }
    const std::lock_guard lock(mutex);
    if (row.survived) ++survived;
    if (row.survived || options.verbose)
      std::printf("%s | %s | %s | %s\n", row.subject.c_str(), row.what.c_str(), row.where.c_str(),
                  row.caught.c_str());
    std::fflush(stdout);
    rows.push_back(std::move(row));
  });
  const std::string summary = fmt::format("{} mistakes in the templates: {} caught, {} survive",
                                          mutants.size(), mutants.size() - survived, survived);
  std::printf("%s\n", summary.c_str());
  write_report(options, rows, summary);
  return !mutants.empty() && survived == 0 ? 0 : 1;
}

int run_alarms(const Options& options) {
  const std::vector<Subject> subjects = chosen(template_subjects(), options);
  const auto compiler = runtime::load_nvrtc_for({.line_info = true, .ptx_only = true});
  std::atomic<int> runs{0}, alarms{0};
  for_each_in_parallel(subjects.size(), [&](std::size_t k) {
    const Subject& subject = subjects[k];
    const Trial trial(subject);
    Compiles compiles(compiler);
    for (int n = 0; n < options.seeds; ++n, ++runs) {
      const Catch result = run({.subject = &subject,
                                .trial = &trial,
                                .edit = {},
                                .first_seed = options.seed + static_cast<std::uint64_t>(n)},
                               compiles);
      if (!result.caught) continue;
      ++alarms;
      std::printf("ALARM %s, seed %llu: %s: %s\n", subject.name.c_str(),
                  static_cast<unsigned long long>(result.seed), result.by.c_str(), result.words.c_str());
    }
  });
  std::printf("%d runs of right kernels with every check on: %d alarms\n", runs.load(), alarms.load());
  return runs != 0 && alarms == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse(argc, argv);
    return options.kind == "sync"        ? run_sync(options)
           : options.kind == "templates" ? run_templates(options)
                                         : run_alarms(options);
  } catch (const Error& error) {
    const bool missing = error.code() == ErrorCode::not_found;
    std::fprintf(stderr, "%s%s\n", missing ? "SKIPPED: " : "mutation_test: ", error.what());
    return missing ? 77 : error.code() == ErrorCode::wrong_result ? 1 : 2;
  }
}
