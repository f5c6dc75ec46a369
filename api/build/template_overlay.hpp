// FLASHJIT_TEMPLATE_DIR: edit a template and run again, with no rebuild.
#pragma once

#include <filesystem>

#include "generator/render.hpp"

namespace flashjit::api {

// The embedded templates with those replaced that `directory` has under the same path
// ("parts/mma/softmax.cuh"). Throws Error{not_found} for a directory that is none, {invalid_argument} for a
// file that replaces nothing, {io} for one that cannot be read. Files whose name starts with a dot or ends
// with ~ are an editor's and are passed over.
TemplateSet overlaid_templates(const std::filesystem::path& directory);

// From the environment: embedded_templates() where FLASHJIT_TEMPLATE_DIR is unset or empty.
TemplateSet templates_from_environment();

}  // namespace flashjit::api
