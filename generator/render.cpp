// From a Problem and a Schedule to kernels: a header that explains, the constants, the parts, the kernel.
#include "generator/render.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "flashjit/error.hpp"
#include "generator/families/wgmma_backward_fp32.hpp"
#include "generator/recipe.hpp"
#include "generator/templates.hpp"

namespace flashjit {
namespace {

constexpr std::string_view kVersion = FLASHJIT_VERSION;

std::vector<Recipe> recipes(const Problem& problem, const Schedule& schedule, const Target& target) {
  struct Visitor {
    const Problem& problem;
    const Target& target;
    std::vector<Recipe> operator()(const SimtSchedule& s) const { return recipes_simt(problem, s, target); }
    std::vector<Recipe> operator()(const MmaSchedule& s) const { return recipes_mma(problem, s, target); }
    std::vector<Recipe> operator()(const WgmmaSchedule& s) const { return recipes_wgmma(problem, s, target); }
    std::vector<Recipe> operator()(const SimtBackwardSchedule& s) const {
      return recipes_simt_backward(problem, s, target);
    }
    std::vector<Recipe> operator()(const MmaBackwardSchedule& s) const {
      return recipes_mma_backward(problem, s, target);
    }
    std::vector<Recipe> operator()(const WgmmaBackwardSchedule& s) const {
      return recipes_wgmma_backward(problem, s, target);
    }
  };
  return std::visit(Visitor{problem, target}, schedule);
}

std::string header(const Problem& problem, const Schedule& schedule, const Target& target,
                   const Recipe& recipe) {
  std::string text = fmt::format(
      "// {}, schedule {}, for {}.\n"
      "// Written by flashjit {} from templates/{}.\n\n",
      describe(problem), to_string(schedule), target.arch, kVersion, recipe.kernel);
  std::size_t width = 0;
  const auto declaration = [](const Constant& c) {
    return fmt::format("constexpr {} {} = {};", c.type, c.name, c.value);
  };
  for (const Constant& c : recipe.constants) width = std::max(width, declaration(c).size());
  for (const Constant& c : recipe.constants)
    text += fmt::format("{:<{}}  // {}\n", declaration(c), width, c.comment);
  return text + "\n";
}

// A mistake in our templates is a bug, one in templates that somebody edited is not.
Rendered expanded(const Recipe& recipe, const TemplateSet& templates) {
  try {
    return expand(recipe, templates);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::internal || templates == embedded_templates()) throw;
    throw Error(ErrorCode::invalid_argument, error.message(), "Correct the template that replaces ours.");
  }
}

}  // namespace

std::vector<KernelSource> render(const Problem& problem, const Schedule& schedule, const Target& target,
                                 const TemplateSet& templates) {
  validate(problem);
  if (const Legality legality = legal(problem, schedule, target); !legality) {
    throw Error(ErrorCode::unsupported, legality.reason);
  }
  std::vector<KernelSource> kernels;
  for (Recipe& recipe : recipes(problem, schedule, target)) {
    KernelSource kernel;
    kernel.entry = kernel_name(problem, schedule) + recipe.suffix;
    Rendered body = expanded(recipe, templates);
    // The kernel template calls its function FLASHJIT_ENTRY.
    constexpr std::string_view kEntry = "FLASHJIT_ENTRY";
    for (auto at = body.text.find(kEntry); at != std::string::npos; at = body.text.find(kEntry, at)) {
      body.text.replace(at, kEntry.size(), kernel.entry);
    }
    kernel.text = header(problem, schedule, target, recipe);
    kernel.origins.assign(static_cast<std::size_t>(std::count(kernel.text.begin(), kernel.text.end(), '\n')),
                          {});
    kernel.text += body.text;
    kernel.origins.insert(kernel.origins.end(), body.origins.begin(), body.origins.end());
    kernel.ptxas = recipe.ptxas;
    kernel.geometry = recipe.geometry;
    kernel.maps = std::move(recipe.maps);
    kernels.push_back(std::move(kernel));
  }
  return kernels;
}

Workspace workspace_of(const Problem& problem, const Schedule& schedule) {
  if (pass_of(schedule) == Pass::forward) return {};
  const auto way = static_cast<DqWay>(get(schedule, "dq"));
  const bool dq_sum = way != DqWay::own_pass;
  // In 16 bits family wgmma turns the sums into dQ in the kernel that adds to them; in fp32 it splits tiles
  // once.
  const bool wgmma = family_of(schedule) == Family::wgmma, fp32 = problem.dtype == DType::fp32;
  return {.lse_log2 = !fp32,
          .dq_sum = dq_sum,
          .counters = dq_sum && wgmma && !fp32,
          .narrow = wgmma && !fp32,
          .tile_m = tile_m_of(schedule),
          .row_parts_bytes = wgmma && fp32 ? row_parts_bytes_wgmma_backward_fp32(problem) : 0,
          .tile_n = get(schedule, "tile_n"),
          .key_parts_bytes = wgmma && fp32 && !dq_sum ? key_parts_bytes_wgmma_backward_fp32(problem) : 0,
          .splits = wgmma ? get(schedule, "splits") : 1};
}

const TemplateSet& embedded_templates() {
  static const TemplateSet set = [] {
    TemplateSet made;
    for (const EmbeddedTemplate& file : embedded_template_files()) made.emplace(file.path, file.text);
    return made;
  }();
  return set;
}

}  // namespace flashjit
