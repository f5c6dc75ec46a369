// Reads the override directory into a copy of the embedded templates.
#include "api/build/template_overlay.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

#include "flashjit/error.hpp"

namespace flashjit::api {
namespace {

namespace fs = std::filesystem;

// Editors' files, and what makes the templates/ folder of a checkout usable as it is.
bool is_no_template(const std::string& name) {
  return name.starts_with('.') || name.starts_with('#') || name.ends_with('~') || name == "CMakeLists.txt";
}

std::string read(const fs::path& path) {
  if (std::error_code error; !fs::is_regular_file(path, error)) {
    throw Error(ErrorCode::io, fmt::format("FLASHJIT_TEMPLATE_DIR: {} is not a file", path.string()));
  }
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file.is_open() || file.bad()) {
    throw Error(ErrorCode::io, fmt::format("FLASHJIT_TEMPLATE_DIR: {} cannot be read", path.string()));
  }
  return text;
}

}  // namespace

TemplateSet overlaid_templates(const fs::path& directory) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    throw Error(
        ErrorCode::not_found,
        fmt::format("FLASHJIT_TEMPLATE_DIR is \"{}\", may be a directory of templates", directory.string()),
        "Copy what you want to edit out of templates/, with its sub-directory, or unset it.");
  }
  TemplateSet templates = embedded_templates();
  auto at =
      fs::recursive_directory_iterator(directory, fs::directory_options::follow_directory_symlink, error);
  for (; !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
    const bool skipped = is_no_template(at->path().filename().string());
    if (at->is_directory(error)) {
      if (skipped) at.disable_recursion_pending();
      continue;
    }
    if (skipped) continue;
    const std::string name = at->path().lexically_relative(directory).generic_string();
    const auto replaced = templates.find(name);
    if (replaced == templates.end()) {
      std::string known;
      for (const auto& [path, text] : templates) known += "\n  " + path;
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("FLASHJIT_TEMPLATE_DIR: \"{}\" is not the path of a template", name),
                  "A file replaces the template of the same path:" + known);
    }
    replaced->second = read(at->path());
  }
  if (error) {
    throw Error(ErrorCode::io, fmt::format("FLASHJIT_TEMPLATE_DIR: {} cannot be listed: {}",
                                           directory.string(), error.message()));
  }
  return templates;
}

TemplateSet templates_from_environment() {
  const char* directory = std::getenv("FLASHJIT_TEMPLATE_DIR");
  return directory == nullptr || *directory == '\0' ? embedded_templates() : overlaid_templates(directory);
}

}  // namespace flashjit::api
