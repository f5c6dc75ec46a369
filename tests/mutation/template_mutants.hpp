// Mutants of the second kind: a template with a mistake that a person could make.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "generator/render.hpp"

namespace flashjit::test {

struct TemplateMutant {
  std::string name;                   // "mask lets the next key through"
  std::string file;                   // "parts/mma/mask.cuh"
  std::string from, to;               // the text's only occurrence, and what stands there instead
  std::vector<std::string> subjects;  // that are run, one after the other, until one shows something
};

// The list (template_mutants.txt): blocks that an empty line separates, each of "name:", "file:", "subjects:"
// and then the lines of `from` behind "- " and of `to` behind "+ ".
std::vector<TemplateMutant> read_template_mutants(const std::filesystem::path& list);

// The templates with the mistake in them. Throws Error{invalid_argument} if `from` is not there once.
TemplateSet apply(const TemplateMutant& mutant, const TemplateSet& templates);

}  // namespace flashjit::test
