// From a question to a kernel that is ready to launch: look in the tables, then choose, compile and load.
#include "api/engine_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <new>
#include <optional>
#include <stdexcept>
#include <utility>

#include "api/build/template_overlay.hpp"
#include "api/tuning.hpp"
#include "autotune/canonical.hpp"
#include "autotune/tune.hpp"
#include "emulator/emulated_device.hpp"
#include "flashjit/error.hpp"
#include "runtime/compile.hpp"
#include "runtime/cuda_device.hpp"

namespace flashjit {

void api::refuse_device(const std::string& name) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("device is \"{}\", may be cuda, cuda:N or emulated:sm_XX", name));
}

namespace {

// How many schedules to compile in search of one that spills nothing. The model ranks schedules that spill
// far down, so more than a few spillers in a row mean that nothing fits.
constexpr std::size_t kMaxAttempts = 6;

// The seed of an emulated device's warp interleaving. A finding names its seed, to be reproduced with it.
std::uint64_t emulator_seed() {
  const char* text = std::getenv("FLASHJIT_EMULATOR_SEED");
  if (text == nullptr || *text == '\0') return emulator::EmulatorOptions().seed;
  std::uint64_t seed = 0;
  const std::string_view digits = text;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), seed);
  if (error == std::errc() && end == digits.data() + digits.size()) return seed;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("FLASHJIT_EMULATOR_SEED is \"{}\", may be a whole number from 0 to {}", text,
                          std::numeric_limits<std::uint64_t>::max()));
}

std::unique_ptr<runtime::Device> open_device(const std::string& name) {
  constexpr std::string_view kEmulated = "emulated:";
  if (name.starts_with(kEmulated))
    return emulator::open_emulated_device({.arch = name.substr(kEmulated.size()), .seed = emulator_seed()});
  if (name == "cuda" || name.starts_with("cuda:")) return runtime::open_cuda_device(name);
  api::refuse_device(name);
}

// A cast may have given the enum any number.
void check_tuning(Tuning tuning) {
  if (tuning < Tuning::off || tuning > Tuning::full) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("tuning is {}, may be off (0), quick (1) or full (2)", static_cast<int>(tuning)));
  }
}

// Makes the cache directory absolute: a tuning worker gets its path, perhaps after a chdir, and a relative
// one would name another place by then.
EngineOptions checked(EngineOptions options) {
  check_tuning(options.tuning);
  if (options.tuning_budget.count() < 0 || options.tuning_budget > api::kLongestBudget) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("tuning_budget is {} ms, may be 0 to {} ms, a day", options.tuning_budget.count(),
                            api::kLongestBudget.count()));
  }
  if (!options.cache_dir.empty()) options.cache_dir = cache::absolute_directory(options.cache_dir).string();
  return options;
}

EngineOptions with_messages(EngineOptions options) {
  if (!options.on_message) {
    options.on_message = [](std::string_view line) {
      std::fprintf(stderr, "flashjit: %.*s\n", static_cast<int>(line.size()), line.data());
    };
  }
  return options;
}

void add_to(std::string& note, const std::string& words) {
  if (!note.empty() && !words.empty()) note += "; ";
  note += words;
}

void mix(std::size_t& seed, std::size_t value) {
  seed ^= value + 0x9e3779b97f4a7c15ULL + (seed << 6) + (seed >> 2);
}

std::filesystem::path wisdom_in(const std::filesystem::path& directory) {
  return directory.empty() ? directory : directory / "wisdom.jsonl";
}

std::size_t hash_of(const Problem& p) {
  std::size_t seed = 0;
  for (const int field :
       {static_cast<int>(p.pass), static_cast<int>(p.dtype), p.head_dim, p.value_dim(),
        static_cast<int>(p.causal), static_cast<int>(p.lse), static_cast<int>(p.deterministic)}) {
    mix(seed, static_cast<std::size_t>(field));
  }
  return seed;
}

}  // namespace

std::size_t EngineState::Hash::operator()(const PlanKey& key) const {
  std::size_t seed = hash_of(key.problem);
  for (const std::string* text : {&key.bucket, &key.schedule, &key.family})
    mix(seed, std::hash<std::string>{}(*text));
  mix(seed, static_cast<std::size_t>(key.tuning));
  if (key.carried_over) mix(seed, std::hash<std::string>{}(to_string(*key.carried_over)));
  return seed;
}

std::size_t EngineState::Hash::operator()(const Question& question) const {
  std::size_t seed = hash_of(question.problem);
  const Shape& s = question.shape;
  for (const int field :
       {s.batch, s.heads, s.heads_kv, s.seqlen_q, s.seqlen_k, static_cast<int>(question.tuning)})
    mix(seed, static_cast<std::size_t>(field));
  for (const std::string* text : {&question.schedule, &question.family})
    mix(seed, std::hash<std::string>{}(*text));
  return seed;
}

std::size_t EngineState::Hash::operator()(const KernelKey& key) const {
  std::size_t seed = hash_of(key.problem);
  mix(seed, std::hash<std::string>{}(to_string(key.schedule)));
  return seed;
}

EngineState::Parts EngineState::parts_from_environment(const EngineOptions& options,
                                                       const api::Message& message) {
  cache::StoreOptions store;
  if (options.use_cache) store = cache::options_from_environment(options.cache_dir);
  store.warn = message;
  return {.device = open_device(options.device),
          .store = cache::open_store(store),
          .wisdom_file = wisdom_in(store.directory),
          .system_wisdom_file = wisdom_in(store.system_directory),
          .templates = api::templates_from_environment(),
          .load_compiler = runtime::load_nvrtc};
}

EngineState::EngineState(EngineOptions options, Parts parts)
    : options_(checked(with_messages(std::move(options)))),
      parts_(std::move(parts)),
      builder_(*parts_.device, *parts_.store, parts_.templates, parts_.load_compiler),
      chooser_(parts_.device->target(), autotune::gpu_of(parts_.device->description()),
               api::versions_of(parts_.templates), parts_.wisdom_file, parts_.system_wisdom_file,
               options_.on_message) {}

EngineState::EngineState(const EngineOptions& options)
    : EngineState(options, parts_from_environment(options, with_messages(options).on_message)) {}

EngineState::Answer EngineState::ready(const Problem& problem, const Shape& shape,
                                       const PlanOptions& options) {
  validate(problem);
  validate(shape);
  check_tuning(options.tuning);
  const Question question{.problem = autotune::canonical(problem),
                          .shape = shape,
                          .schedule = options.schedule,
                          .family = options.family,
                          .tuning = std::max(options.tuning, options_.tuning)};
  if (auto known = answers_.find(question)) return {.ready = std::move(known)};
  return answer(question, options);
}

EngineState::Answer EngineState::answer(const Question& question, const PlanOptions& options) {
  const Shape& shape = question.shape;
  PlanKey key{.problem = question.problem,
              .bucket = autotune::bucket_of(question.problem, shape, device().target()),
              .schedule = question.schedule,
              .family = question.family,
              .tuning = question.tuning};
  Answer answer = find_or_make(key, shape, options);
  const api::Choice& choice = answer.ready->choice;
  if (choice.lengths) {
    if (const Schedule& schedule = choice.lengths->schedule_for(shape); schedule != choice.schedule) {
      key.carried_over = schedule;
      auto known = plans_.find(key);
      // The capture was prepared for sizes like these, and takes the plan that is there.
      if (!known && in_capture(options.stream)) return answer;
      answer =
          known ? Answer{.ready = std::move(known)} : find_or_make(key, shape, options, answer.ready.get());
    }
  }
  answers_.keep(question, answer.ready);
  return answer;
}

// The default stream cannot be captured.
bool EngineState::in_capture(Stream stream) {
  return stream != nullptr && device().capturing(stream);
}

void EngineState::refuse_in_capture(const char* what, Stream stream) {
  // Checks the default stream, too: using it would break the capture of a stream that waits for it.
  if (!device().capturing(stream)) return;
  throw Error(ErrorCode::unsupported, fmt::format("the stream of this {} is being captured", what),
              "Call it before the capture begins, or after it has ended.");
}

EngineState::Answer EngineState::find_or_make(const PlanKey& key, const Shape& shape,
                                              const PlanOptions& options, const Ready* first) {
  if (auto known = plans_.find(key)) return {.ready = std::move(known)};
  // While another stream is captured, a plan can be made, unless it is tuned in this process: that uses the
  // default stream and would break the capture.
  if (in_capture(options.stream)) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("the plan for {} at {} is not ready, and its stream is being captured",
                    describe(key.problem), describe(shape)),
        "Call Engine::prepare before the capture begins, with the same problem, sizes and options (but "
        "stream).");
  }
  PlanOptions effective = options;
  effective.tuning = key.tuning;
  Answer answer;
  answer.ready = plans_.get(key, [&] {
    answer.fresh = true;
    return std::make_shared<const Ready>(make(key.problem, shape, effective, first));
  });
  return answer;
}

// One lock per device for all Engines of this process: tuning runs at the same time would disturb each other.
std::mutex& EngineState::tuning_on(const std::string& device) {
  static std::mutex guard;
  // Never destroyed: a thread that outlives main may hold one of these.
  static auto& all = *new std::map<std::string, std::mutex>;
  const std::lock_guard lock(guard);
  return all[device];
}

std::string EngineState::tune(const Problem& problem, const Shape& shape, const PlanOptions& options) {
  const Tuning effort = options.tuning;
  if (effort == Tuning::off || !options.schedule.empty()) return {};
  if (flops(problem, shape) == 0) return {};  // there is nothing to time
  const std::lock_guard lock(tuning_on(device().name()));
  if (chooser_.knows(problem, shape, options.family, effort)) return {};
  std::exception_ptr thrown;  // by on_message, and none of the tuner's business
  std::mutex thrown_mutex;
  const auto progress = [&](std::string_view line) {
    try {
      message(line);
    } catch (...) {
      const std::lock_guard guard(thrown_mutex);
      thrown = std::current_exception();
      throw;
    }
  };
  const auto failed = [&](const std::string& why) {
    if (thrown) std::rethrow_exception(thrown);
    std::string words = "tuning failed: " + why;
    message(words);
    return words;
  };
  try {
    const autotune::TuneResult result = api::tune(
        *this, problem, shape,
        {.effort = effort, .budget = options_.tuning_budget, .family = options.family, .progress = progress});
    if (thrown) std::rethrow_exception(thrown);
    chooser_.learn(problem, shape, effort, result);
    return result.learnt_nothing() ? std::string(api::kLearntNothing) : "";
  } catch (const Error& error) {
    // A plan can still be made from wisdom or the model. If nothing can serve the problem, the error comes
    // from there.
    if (error.code() == ErrorCode::internal) throw;
    return failed(error.message());
  } catch (const std::bad_alloc&) {
    return failed(autotune::host_memory_error().message());
  } catch (const std::length_error&) {
    return failed(autotune::host_memory_error().message());
  }
}

EngineState::Ready EngineState::make(const Problem& problem, const Shape& shape, const PlanOptions& options,
                                     const Ready* first) {
  std::string untuned = first != nullptr ? first->untuned : tune(problem, shape, options);
  std::string note = untuned;
  Chosen chosen = choose(problem, shape, options, note);
  const Schedule& schedule = chosen.choice.schedule;
  bool fresh = false;
  LauncherPointer launcher = kernels_.get({problem, schedule}, [&]() -> LauncherPointer {
    fresh = true;
    return std::make_shared<const api::Launcher>(device(), builder_.load(problem, schedule, *chosen.code));
  });
  Origin origin{.schedule = to_string(schedule),
                .choice = chosen.choice.why,
                .code = fresh ? launcher->plan().origin() : "memory",
                .note = note};
  return Ready{.launcher = std::move(launcher),
               .origin = std::move(origin),
               .choice = std::move(chosen.choice),
               .untuned = std::move(untuned)};
}

EngineState::Chosen EngineState::choose(const Problem& problem, const Shape& shape,
                                        const PlanOptions& options, std::string& note) {
  if (options.schedule.empty() && options.family.empty())
    add_to(note, autotune::family_note(problem, device().target()));
  const std::optional<api::Choice> preferred = chooser_.preferred(problem, shape, options);
  if (preferred.has_value()) {
    if (auto chosen = attempt(problem, *preferred, !options.schedule.empty(), note))
      return *std::move(chosen);
  }
  const std::vector<Schedule> ranked = chooser_.ranked(problem, shape, options);
  const auto choice = [&](std::size_t i) {
    return api::Choice{ranked[i], "model",
                       autotune::CarryOver(std::span(ranked).subspan(i), problem, shape, device().target())};
  };
  const std::size_t attempts = std::min(ranked.size(), kMaxAttempts);
  const std::string before = note;
  for (std::size_t i = 0; i < attempts; ++i) {
    if (preferred.has_value() && ranked[i] == preferred->schedule) continue;
    if (auto chosen = attempt(problem, choice(i), false, note)) return *std::move(chosen);
  }
  // All of them spill: take the model's best, and let its note alone say so.
  note = before;
  return attempt(problem, choice(0), true, note).value();
}

std::optional<EngineState::Chosen> EngineState::attempt(const Problem& problem, const api::Choice& choice,
                                                        bool may_spill, std::string& note) {
  PlanCodePointer code = codes_.get({problem, choice.schedule}, [&]() -> PlanCodePointer {
    return std::make_shared<const api::PlanCode>(builder_.code(problem, choice.schedule));
  });
  const runtime::Resources resources = code->resources();
  if (resources.spill_stores + resources.spill_loads != 0) {
    add_to(note, fmt::format("{} spills {} bytes of registers{}", to_string(choice.schedule),
                             std::max(resources.spill_stores, resources.spill_loads),
                             may_spill ? "" : " and was passed over"));
    if (!may_spill) return std::nullopt;
  }
  return Chosen{.choice = choice, .code = std::move(code)};
}

}  // namespace flashjit
