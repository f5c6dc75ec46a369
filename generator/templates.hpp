// The templates that were compiled into the library.
#pragma once

#include <string_view>
#include <vector>

#include "generator/render.hpp"

namespace flashjit {

struct EmbeddedTemplate {
  std::string_view path;  // under templates/
  std::string_view text;
};
std::vector<EmbeddedTemplate> embedded_template_files();  // defined by cmake/embed.cmake's output

}  // namespace flashjit
