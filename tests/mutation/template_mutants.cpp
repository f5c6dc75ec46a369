#include "tests/mutation/template_mutants.hpp"

#include <fmt/format.h>

#include <fstream>
#include <sstream>

#include "flashjit/error.hpp"

namespace flashjit::test {

std::vector<TemplateMutant> read_template_mutants(const std::filesystem::path& list) {
  std::ifstream file(list);
  if (!file) throw Error(ErrorCode::io, fmt::format("{} cannot be read", list.string()));
  std::vector<TemplateMutant> mutants;
  TemplateMutant mutant;
  int number = 0;
  const auto finish = [&] {
    if (!mutant.name.empty()) {
      if (mutant.file.empty() || mutant.from.empty() || mutant.subjects.empty())
        throw Error(ErrorCode::invalid_argument, fmt::format("{}:{}: \"{}\" lacks its file, text or subjects",
                                                             list.string(), number, mutant.name));
      mutants.push_back(std::move(mutant));
    }
    mutant = {};
  };
  const auto append = [](std::string& text, const std::string& line) {
    if (!text.empty()) text += '\n';
    text += line;
  };
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.empty()) {
      finish();
    } else if (line.starts_with("#")) {
      continue;
    } else if (line.starts_with("name: ")) {
      mutant.name = line.substr(6);
    } else if (line.starts_with("file: ")) {
      mutant.file = line.substr(6);
    } else if (line.starts_with("subjects: ")) {
      std::istringstream names(line.substr(10));
      for (std::string name; std::getline(names, name, ';');) {
        const std::size_t first = name.find_first_not_of(' ');
        if (first != std::string::npos) mutant.subjects.push_back(name.substr(first));
      }
    } else if (line.starts_with("- ")) {
      append(mutant.from, line.substr(2));
    } else if (line.starts_with("+ ") || line == "+") {
      append(mutant.to, line.size() > 2 ? line.substr(2) : "");
    } else {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}:{}: \"{}\" is no line of a mutant", list.string(), number, line));
    }
  }
  finish();
  return mutants;
}

TemplateSet apply(const TemplateMutant& mutant, const TemplateSet& templates) {
  TemplateSet changed = templates;
  const auto found = changed.find(mutant.file);
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::invalid_argument, fmt::format("mutant \"{}\": {}", mutant.name, what));
  };
  if (found == changed.end()) refuse(fmt::format("there is no template {}", mutant.file));
  std::string& text = found->second;
  const std::size_t at = text.find(mutant.from);
  if (at == std::string::npos) refuse(fmt::format("{} does not have \"{}\"", mutant.file, mutant.from));
  if (text.find(mutant.from, at + 1) != std::string::npos)
    refuse(fmt::format("{} has \"{}\" more than once", mutant.file, mutant.from));
  text.replace(at, mutant.from.size(), mutant.to);
  return changed;
}

}  // namespace flashjit::test
