// Template text to CUDA C++: sections, lists and includes, with the template line of every line that comes out.
#include <fmt/format.h>

#include <kainjow/mustache.hpp>
#include <set>

#include "flashjit/error.hpp"
#include "generator/recipe.hpp"

namespace flashjit {
namespace {

namespace mustache = kainjow::mustache;

// Ends each template line on its way through Mustache, so that the line's number survives: MARK number NEWLINE.
constexpr char kMark = '\x01';

bool blank(std::string_view line) { return line.find_first_not_of(" \t") == std::string_view::npos; }

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const auto end = text.find('\n');
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

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

class Expander {
 public:
  Expander(const Recipe& recipe, const TemplateSet& templates) : context_(context_of(recipe)), templates_(templates) {}

  void paste(std::string_view path, std::string_view wanted_by) {
    const auto found = templates_.find(path);
    if (found == templates_.end()) {
      throw Error(ErrorCode::internal, fmt::format("template {} is missing, wanted by {}", path, wanted_by));
    }
    if (!pasted_.insert(found->first).second) return;
    const std::string filled = fill(found->first, found->second);
    const auto source_lines = lines_of(found->second);
    bool previous_blank = true;  // swallow blank lines at the top
    for (std::string_view line : lines_of(filled)) {
      const auto mark = line.rfind(kMark);
      const int number = std::atoi(std::string(line.substr(mark + 1)).c_str());
      std::string content(line.substr(0, mark));
      content.erase(std::remove_if(content.begin(), content.end(), [](char c) { return c == kMark; }), content.end());
      while (!content.empty() && content.back() == ' ') content.pop_back();
      if (content == "#pragma once") continue;
      if (const auto path_below = included(content); !path_below.empty()) {
        paste(path_below, fmt::format("{}:{}", found->first, number));
        previous_blank = false;
        continue;
      }
      if (blank(content) && (previous_blank || !blank(source_lines[static_cast<std::size_t>(number) - 1]))) continue;
      previous_blank = blank(content);
      out_.text += content;
      out_.text += '\n';
      out_.origins.push_back({found->first, number});
    }
  }

  Rendered take() { return std::move(out_); }

 private:
  std::string fill(const std::string& path, std::string_view text) {
    std::string marked = "{{=/*% %*/=}}";
    int number = 0;
    for (std::string_view line : lines_of(text)) {
      marked += line;
      marked += fmt::format("{}{}\n", kMark, ++number);
    }
    mustache::mustache page(marked);
    page.set_custom_escape([](const std::string& plain) { return plain; });
    std::string filled = page.is_valid() ? page.render(context_) : std::string();
    if (!page.is_valid()) {
      throw Error(ErrorCode::internal, fmt::format("template {} is malformed: {}", path, page.error_message()));
    }
    return filled;
  }

  mustache::data context_;
  const TemplateSet& templates_;
  std::set<std::string, std::less<>> pasted_;
  Rendered out_;
};

}  // namespace

Rendered expand(const Recipe& recipe, const TemplateSet& templates) {
  Expander expander(recipe, templates);
  expander.paste(recipe.kernel, "the renderer");
  return expander.take();
}

}  // namespace flashjit
