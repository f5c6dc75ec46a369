// Turns template text into CUDA C++: fills in sections and lists, pastes includes, and keeps the template
// line of every rendered line.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <kainjow/mustache.hpp>
#include <set>
#include <utility>

#include "flashjit/error.hpp"
#include "generator/recipe.hpp"

namespace flashjit {
namespace {

namespace mustache = kainjow::mustache;

constexpr std::string_view kOpen = "/*%";
constexpr std::string_view kClose = "%*/";

// How lines keep their numbers on their way through Mustache: a line with tags is followed by MARK number
// END. Consecutive lines without tags are replaced by MARK first-last END, and their text is put back
// afterwards: Mustache parses a template character by character, and makes a component of each blank and
// newline, which was most of what a plan from a warm cache cost.
constexpr char kMark = '\x01';
constexpr char kEnd = '\x02';

bool holds_tag(std::string_view line) {
  return line.find(kOpen) != std::string_view::npos;
}

bool blank(std::string_view line) {
  return line.find_first_not_of(" \t") == std::string_view::npos;
}

// The tag of a line that only begins or ends a section, of which nothing is left. Empty for any other line.
std::string_view lone_section_tag(std::string_view line) {
  if (blank(line)) return {};
  line.remove_prefix(line.find_first_not_of(" \t"));
  line = line.substr(0, line.find_last_not_of(" \t") + 1);
  const bool lone = line.starts_with(kOpen) && line.find(kClose) == line.size() - kClose.size();
  return lone && std::string_view("#^/").find(line[kOpen.size()]) != std::string_view::npos
             ? line
             : std::string_view();
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const auto end = text.find(separator);
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  return split(text, '\n');
}

[[noreturn]] void refuse(std::string_view path, int line, std::string_view why) {
  throw Error(ErrorCode::internal, fmt::format("template {}:{}: {}", path, line, why));
}

// Mustache takes an unknown name for an absent section, and reports an unclosed tag without its line. So tags
// are checked before Mustache runs: every name has to be one of the recipe's, and sections nest two deep at
// most.
class TagChecker {
 public:
  TagChecker(const Recipe& recipe, std::string_view path) : recipe_(recipe), path_(path) {}

  void check(std::string_view text) {
    int number = 0;
    for (std::string_view line : lines_of(text)) {
      ++number;
      for (const char control : {kMark, kEnd})
        if (line.find(control) != std::string_view::npos) refuse(path_, number, "a control character");
      while (true) {
        const auto open = line.find(kOpen);
        const auto stray = line.substr(0, open).find(kClose);
        if (stray != std::string_view::npos) refuse(path_, number, "a tag ends that did not begin");
        if (open == std::string_view::npos) break;
        line.remove_prefix(open + kOpen.size());
        const auto close = line.find(kClose);
        if (close == std::string_view::npos) refuse(path_, number, "a tag does not end on its line");
        tag(line.substr(0, close), number);
        line.remove_prefix(close + kClose.size());
      }
    }
    if (!open_.empty()) {
      refuse(path_, open_.back().line, fmt::format("section {} is not closed", open_.back().name));
    }
  }

 private:
  struct Section {
    std::string_view name;
    int line;
  };

  void tag(std::string_view tag, int line) {
    const char kind = tag.empty() ? ' ' : tag.front();
    const bool sigil = kind == '#' || kind == '^' || kind == '/';
    const std::string_view name = tag.substr(sigil ? 1 : 0);
    constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789_";
    if (name.empty() || name.find_first_not_of(kLetters) != std::string_view::npos) {
      refuse(path_, line, fmt::format("the tag \"{}\" is malformed", tag));
    }
    if (kind == '/') {
      if (open_.empty() || open_.back().name != name) {
        refuse(path_, line,
               open_.empty() ? fmt::format("section {} ends and did not begin", name)
                             : fmt::format("section {} ends inside section {} of line {}", name,
                                           open_.back().name, open_.back().line));
      }
      open_.pop_back();
      return;
    }
    if (!sigil) return variable(name, line);
    const bool known =
        recipe_.sections.count(std::string(name)) != 0 || recipe_.lists.count(std::string(name)) != 0;
    if (!known) refuse(path_, line, fmt::format("{} has no section {}", recipe_.kernel, name));
    if (open_.size() == 2) {
      refuse(path_, line,
             fmt::format("no section inside a section inside a section: {} is in {} in {}; split the part",
                         name, open_[1].name, open_[0].name));
    }
    open_.push_back({name, line});
  }

  // A value may stand only inside a list of which every item has it.
  void variable(std::string_view name, int line) const {
    for (const Section& section : open_) {
      const auto list = recipe_.lists.find(std::string(section.name));
      if (list == recipe_.lists.end()) continue;
      const auto has = [&](const auto& item) { return item.count(std::string(name)) != 0; };
      if (std::all_of(list->second.begin(), list->second.end(), has)) return;
    }
    refuse(path_, line, fmt::format("no list around gives {} a value", name));
  }

  const Recipe& recipe_;
  std::string_view path_;
  std::vector<Section> open_;
};

mustache::data context_of(const Recipe& recipe) {
  mustache::data context;
  for (const auto& [name, shown] : recipe.sections) context.set(name, shown);
  for (const auto& [name, items] : recipe.lists) {
    mustache::data list{mustache::data::type::list};
    for (const auto& item : items) {
      mustache::data entry;
      for (const auto& [key, value] : item) entry.set(key, value);
      list << entry;
    }
    context.set(name, list);
  }
  return context;
}

// "ptx/mma.cuh" of a line that reads #include "ptx/mma.cuh"; empty for any other line.
std::string_view included(std::string_view line) {
  constexpr std::string_view kInclude = "#include \"";
  const auto start = line.find_first_not_of(" \t");
  if (start == std::string_view::npos || line.substr(start, kInclude.size()) != kInclude) return {};
  line.remove_prefix(start + kInclude.size());
  return line.substr(0, line.find('"'));
}

// "7" as 7 and 0, "7-12" as 7 and 12.
std::pair<int, int> numbers_of(std::string_view text) {
  std::pair<int, int> numbers{0, 0};
  const char* end = text.data() + text.size();
  const char* at = std::from_chars(text.data(), end, numbers.first).ptr;
  if (at != end) std::from_chars(at + 1, end, numbers.second);
  return numbers;
}

// A line of a template whose sections have been filled in.
struct Line {
  std::string_view text;  // without blanks at its end
  int number;             // in the template, 1-based
};

// The lines that are pasted, blank ones among them. A line is dropped if nothing is left of it once its tags
// are gone.
std::vector<Line> lines_left(const std::vector<std::string_view>& source, std::string_view filled) {
  std::vector<Line> lines;
  const auto keep = [&](std::string_view text, int number) {
    text = text.substr(0, text.find_last_not_of(" \t") + 1);
    const std::string_view written = source[static_cast<std::size_t>(number) - 1];
    if (text != "#pragma once" && (!text.empty() || blank(written))) lines.push_back({text, number});
  };
  for (const std::string_view line : split(filled, kEnd)) {
    const auto mark = line.find(kMark);
    const auto [first, last] = numbers_of(line.substr(mark + 1));
    if (last == 0) keep(line.substr(0, mark), first);
    for (int number = first; number <= last; ++number)
      keep(source[static_cast<std::size_t>(number) - 1], number);
  }
  return lines;
}

// Moves what a part includes at its top before the part's comment, so that the comment stands right above the
// part's own code. (A kernel's comment says what all the parts are for, and stays above them.)
void put_includes_first(std::vector<Line>& lines) {
  const auto is_include = [](const Line& line) { return !included(line.text).empty(); };
  const auto code = std::find_if(lines.begin(), lines.end(), [&](const Line& line) {
    return !line.text.empty() && !line.text.starts_with("//") && !is_include(line);
  });
  std::stable_partition(lines.begin(), code, is_include);
}

class Expander {
 public:
  Expander(const Recipe& recipe, const TemplateSet& templates)
      : recipe_(recipe), context_(context_of(recipe)), templates_(templates) {}

  void paste(std::string_view path, std::string_view wanted_by) {
    const auto found = templates_.find(path);
    if (found == templates_.end()) {
      throw Error(ErrorCode::internal, fmt::format("template {} is missing, wanted by {}", path, wanted_by));
    }
    const std::string_view file = found->first;  // lives as long as the TemplateSet
    if (!pasted_.insert(file).second) return;
    TagChecker(recipe_, file).check(found->second);
    const auto source = lines_of(found->second);
    const std::string filled = fill(file, source);
    std::vector<Line> lines = lines_left(source, filled);
    if (file != recipe_.kernel) put_includes_first(lines);
    separate();
    for (const Line& line : lines) {
      if (const auto below = included(line.text); !below.empty()) {
        paste(below, fmt::format("{}:{}", file, line.number));
        separate();
        continue;
      }
      if (line.text.find("#include") != std::string_view::npos) {
        refuse(file, line.number, "a kernel is self-contained; #include may only name another template");
      }
      if (line.text.empty()) {
        separate();
      } else {
        emit(line.text, {file, line.number});
      }
    }
  }

  Rendered take() { return std::move(out_); }

 private:
  std::string fill(std::string_view path, const std::vector<std::string_view>& source) {
    std::string marked = fmt::format("{{{{={} {}=}}}}", kOpen, kClose);
    const auto line_at = [&](int number) { return source[static_cast<std::size_t>(number) - 1]; };
    const int count = static_cast<int>(source.size());
    for (int first = 1; first <= count; ++first) {
      const std::string_view line = line_at(first);
      if (const std::string_view tag = lone_section_tag(line); !tag.empty()) {
        marked += tag;
      } else if (holds_tag(line)) {
        marked += fmt::format("{}{}{}{}", line, kMark, first, kEnd);
      } else {
        int last = first;
        while (last < count && !holds_tag(line_at(last + 1))) ++last;
        marked += fmt::format("{}{}-{}{}", kMark, first, last, kEnd);
        first = last;
      }
    }
    mustache::mustache page(marked);
    page.set_custom_escape([](const std::string& plain) { return plain; });
    if (!page.is_valid()) {
      throw Error(ErrorCode::internal,
                  fmt::format("template {} is malformed: {}", path, page.error_message()));
    }
    return page.render(context_);
  }

  // At most one blank line stands between two lines of code, and none at the top.
  void separate() { separate_ = !out_.text.empty(); }

  void emit(std::string_view line, LineOrigin origin) {
    if (separate_) {
      out_.text += '\n';
      out_.origins.push_back({});
      separate_ = false;
    }
    out_.text += line;
    out_.text += '\n';
    out_.origins.push_back(origin);
  }

  const Recipe& recipe_;
  mustache::data context_;
  const TemplateSet& templates_;
  std::set<std::string_view> pasted_;
  bool separate_ = false;
  Rendered out_;
};

}  // namespace

Rendered expand(const Recipe& recipe, const TemplateSet& templates) {
  Expander expander(recipe, templates);
  expander.paste(recipe.kernel, "the renderer");
  return expander.take();
}

}  // namespace flashjit
