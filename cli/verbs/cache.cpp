// `flashjit cache`: list the cache directory, check it, shrink it, move it to another machine.
#include <fmt/format.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "api/build/report.hpp"
#include "api/build/template_overlay.hpp"
#include "api/choose.hpp"
#include "autotune/wisdom.hpp"
#include "cache/files.hpp"
#include "cache/manage.hpp"
#include "cache/pack.hpp"
#include "cache/store.hpp"
#include "cli/common/json.hpp"
#include "cli/common/options.hpp"
#include "cli/common/tell.hpp"
#include "cli/verbs.hpp"
#include "flashjit/error.hpp"

namespace flashjit::cli {
namespace {

using cache::Verdict;
using nlohmann::json;

// Prints text, or JSON on stdout; `words` are a summary for stderr.
void print(bool as_json, const json& data, const std::string& words) {
  if (as_json) {
    fmt::print("{}\n", indented(data));
  } else {
    tell(words);
  }
}

std::string human_bytes(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string human_age(std::time_t then) {
  constexpr std::time_t kMinute = 60;
  constexpr std::time_t kHour = 60 * kMinute;
  constexpr std::time_t kDay = 24 * kHour;
  const auto seconds = std::max<std::time_t>(0, std::time(nullptr) - then);
  if (seconds < 2 * kMinute) return fmt::format("{} s", seconds);
  if (seconds < 2 * kHour) return fmt::format("{} min", seconds / kMinute);
  if (seconds < 2 * kDay) return fmt::format("{} h", seconds / kHour);
  return fmt::format("{} d", seconds / kDay);
}

// A kernel's name. Other entries say what they are in a field of their key.
std::string name_of(const cache::Entry& entry) {
  const std::string kernel = api::parse_report(entry.section("report")).entry;
  return kernel.empty() ? std::string(entry.key.field("record")) : kernel;
}

int list(bool as_json) {
  const cache::StoreOptions options = cache::options_from_environment();
  const std::vector<cache::Row> rows = cache::list_entries(options, name_of);
  std::uint64_t bytes = 0;
  json entries = json::array();
  for (const cache::Row& row : rows) {
    bytes += row.bytes;
    entries.push_back({{"entry", row.digest},
                       {"bytes", row.bytes},
                       {"used", row.used},
                       {"state", to_string(row.verdict)},
                       {"arch", row.arch},
                       {"name", row.name}});
  }
  if (!as_json) {
    fmt::print("{:<12}  {:>10}  {:>8}  {:<10}  {:<8}  {}\n", "entry", "size", "used", "state", "arch",
               "name");
    for (const cache::Row& row : rows) {
      fmt::print("{:<12}  {:>10}  {:>8}  {:<10}  {:<8}  {}\n", row.digest.substr(0, 12),
                 human_bytes(row.bytes), human_age(row.used), to_string(row.verdict), row.arch, row.name);
    }
  }
  print(as_json,
        {{"directory", options.directory.string()},
         {"bytes", bytes},
         {"limit", options.size_limit},
         {"entries", entries}},
        fmt::format("{} entries, {} of {}, in {}", rows.size(), human_bytes(bytes),
                    human_bytes(options.size_limit), options.directory.string()));
  return 0;
}

// A value for a table; one that is long or has several lines is given by its size.
std::string brief(std::string_view value) {
  constexpr std::size_t kLongest = 100;
  const bool fits = value.size() <= kLongest &&
                    std::all_of(value.begin(), value.end(), [](char c) { return c >= ' ' && c <= '~'; });
  return fits ? std::string(value) : fmt::format("({})", human_bytes(value.size()));
}

int show(const std::string& digest, const std::string& section, bool as_json) {
  const cache::Entry entry = cache::load_entry(cache::options_from_environment(), digest);
  if (!section.empty()) {
    for (const auto& [name, value] : entry.sections) {
      if (name != section) continue;
      fmt::print("{}", value);
      return 0;
    }
    std::string names;
    for (const auto& pair : entry.sections) names += (names.empty() ? "" : ", ") + pair.first;
    throw Error(ErrorCode::not_found, fmt::format("section is \"{}\", this entry has {}", section, names));
  }
  json key = json::object();
  json sections = json::object();
  for (const auto& [tag, value] : entry.key.fields) key[tag] = brief(value);
  for (const auto& [name, value] : entry.sections) sections[name] = value.size();
  json report = json::parse(entry.section("report"), nullptr, /*allow_exceptions=*/false);
  if (!report.is_object()) report = json::object();
  if (as_json) {
    fmt::print("{}\n",
               indented(json{
                   {"entry", entry.key.digest()}, {"key", key}, {"sections", sections}, {"report", report}}));
    return 0;
  }
  fmt::print("entry  {}\n\nkey\n", entry.key.digest());
  for (const auto& [tag, value] : entry.key.fields) fmt::print("  {:<12}  {}\n", tag, brief(value));
  fmt::print("\nsections\n");
  for (const auto& [name, value] : entry.sections)
    fmt::print("  {:<12}  {}\n", name, human_bytes(value.size()));
  if (!report.empty()) fmt::print("\nreport\n");
  for (const auto& [name, value] : report.items()) {
    fmt::print("  {:<12}  {}\n", name, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return 0;
}

int verify(bool remove, bool as_json) {
  const cache::StoreOptions options = cache::options_from_environment();
  const std::vector<cache::Row> rows = cache::list_entries(options);
  json bad = json::array();
  for (const cache::Row& row : rows) {
    if (row.verdict == Verdict::good) continue;
    bad.push_back({{"entry", row.digest}, {"state", to_string(row.verdict)}});
    if (!as_json) fmt::print("{}  {}\n", row.digest, to_string(row.verdict));
  }
  const std::uint64_t removed = remove ? cache::remove_bad(options, rows) : 0;
  print(as_json, {{"entries", rows.size()}, {"bad", bad}, {"removed", removed}},
        fmt::format("{} entries, {} bad, {} removed", rows.size(), bad.size(), removed));
  return bad.size() > removed ? 1 : 0;
}

int prune(const std::string& size, bool as_json) {
  const cache::StoreOptions options = cache::options_from_environment();
  const std::uint64_t limit = size.empty() ? options.size_limit : cache::parse_size(size, "--size");
  const cache::SweepResult result = cache::prune(options, limit);
  print(as_json,
        {{"entries", result.entries},
         {"bytes", result.bytes},
         {"removed_entries", result.removed_entries},
         {"removed_bytes", result.removed_bytes},
         {"removed_temporaries", result.removed_temporaries}},
        fmt::format("removed {} of {} entries ({} of {}) and {} stale temporary files",
                    result.removed_entries, result.entries, human_bytes(result.removed_bytes),
                    human_bytes(result.bytes), result.removed_temporaries));
  return 0;
}

int clear(bool wisdom_too, bool as_json) {
  const cache::Cleared cleared = cache::clear(cache::options_from_environment(), wisdom_too);
  print(as_json,
        {{"entries", cleared.entries},
         {"bytes", cleared.bytes},
         {"temporaries", cleared.temporaries},
         {"wisdom", cleared.wisdom}},
        fmt::format("removed {} entries ({}), {} temporary and {} wisdom files", cleared.entries,
                    human_bytes(cleared.bytes), cleared.temporaries, cleared.wisdom));
  return 0;
}

int pack(const std::string& file, bool as_json) {
  const cache::Packed packed = cache::pack(cache::options_from_environment(), file);
  print(as_json,
        {{"entries", packed.entries},
         {"wisdom", packed.wisdom},
         {"skipped", packed.skipped},
         {"bytes", packed.bytes}},
        fmt::format("packed {} entries and {} wisdom files into {} ({}){}", packed.entries, packed.wisdom,
                    file, human_bytes(packed.bytes),
                    packed.skipped == 0 ? "" : fmt::format("; left out {} bad entries", packed.skipped)));
  return 0;
}

int unpack(const std::string& file, bool as_json) {
  const auto merge = [&](const std::filesystem::path& to, std::string_view lines) {
    autotune::Wisdom wisdom;
    if (!wisdom.add_text(lines, file, tell_message)) return false;  // not ours, which has been reported
    if (!autotune::merge_wisdom(to, wisdom, api::versions_of(api::templates_from_environment()),
                                cache::publish, tell_message)) {
      throw Error(ErrorCode::io,
                  fmt::format("the wisdom of {} could not be merged into {}", file, to.string()));
    }
    return true;
  };
  const cache::Unpacked unpacked = cache::unpack(file, cache::options_from_environment(), merge);
  print(as_json,
        {{"entries", unpacked.entries},
         {"kept", unpacked.kept},
         {"wisdom", unpacked.wisdom},
         {"removed", unpacked.removed}},
        fmt::format("unpacked {} entries and {} wisdom files; {} entries were there already{}",
                    unpacked.entries, unpacked.wisdom, unpacked.kept,
                    unpacked.removed == 0
                        ? ""
                        : fmt::format("; {} were removed again, over the limit that FLASHJIT_CACHE_SIZE sets",
                                      unpacked.removed)));
  return 0;
}

struct CacheOptions {
  std::string digest, section, size, file;
  bool remove = false;
  bool wisdom = false;
  bool json = false;
};

}  // namespace

void add_cache(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("cache", "Look at the cache, check it, shrink it, move it");
  verb->require_subcommand(1);
  auto options = std::make_shared<CacheOptions>();
  const auto add = [&](const char* name, const char* what, auto run) {
    CLI::App* sub = verb->add_subcommand(name, what);
    sub->add_flag("--json", options->json, "print JSON");
    sub->callback([options, run, sub, &exit_code] {
      if (!options->section.empty())
        refuse_ignored(*sub, {"--json"}, "--section", "what it prints are the bytes as they are");
      exit_code = run(*options);
    });
    return sub;
  };
  add("ls", "List the entries, most recently used first", [](const CacheOptions& o) { return list(o.json); });

  CLI::App* sub = add("show", "Show one entry: its key, its sections, its report",
                      [](const CacheOptions& o) { return show(o.digest, o.section, o.json); });
  sub->add_option("entry", options->digest, "the entry's name, or the start of it")
      ->required()
      ->check(has_text());
  sub->add_option("--section", options->section,
                  "print this section's bytes: source, ptx, cubin, log, report")
      ->check(has_text());

  sub = add("verify", "Check every entry; exit code 1 if bad ones are left",
            [](const CacheOptions& o) { return verify(o.remove, o.json); });
  sub->add_flag("--remove", options->remove, "remove the bad ones");

  sub = add("prune", "Remove the least recently used entries and stale temporary files",
            [](const CacheOptions& o) { return prune(o.size, o.json); });
  sub->add_option("--size", options->size, "to get below, such as 500M; FLASHJIT_CACHE_SIZE by default")
      ->check(has_text());

  sub = add("clear", "Remove all entries", [](const CacheOptions& o) { return clear(o.wisdom, o.json); });
  sub->add_flag("--wisdom", options->wisdom, "and what tuning learnt");

  sub = add("pack", "Write all good entries and all wisdom to one file",
            [](const CacheOptions& o) { return pack(o.file, o.json); });
  sub->add_option("file", options->file, "to write")->required()->check(has_text());

  sub = add("unpack", "Verify a pack, then add what is in it; a pack is code, so only one that you trust",
            [](const CacheOptions& o) { return unpack(o.file, o.json); });
  sub->add_option("file", options->file, "to read")->required()->check(has_text());
}

}  // namespace flashjit::cli
