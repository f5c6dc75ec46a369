// FLASHJIT_TEMPLATE_DIR: edit a template and run again, without a rebuild.
#pragma once

#include <filesystem>

#include "generator/render.hpp"

namespace flashjit::api {

// The embedded templates, except that each file in `directory` replaces the template of the same path
// ("parts/mma/softmax.cuh"). Files whose name starts with a dot or # or ends with ~ belong to an editor and
// are skipped. Throws Error{not_found} if `directory` is not a directory, {invalid_argument} for a file that
// replaces no template, {io} for a file that cannot be read.
TemplateSet overlaid_templates(const std::filesystem::path& directory);

// As FLASHJIT_TEMPLATE_DIR says; embedded_templates() if it is unset or empty.
TemplateSet templates_from_environment();

}  // namespace flashjit::api
