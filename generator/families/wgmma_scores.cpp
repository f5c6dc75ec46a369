// S of family wgmma's forward pass, register by register. Of eight columns a thread has four scores: two of
// its first row, and two of its second.
#include "generator/families/wgmma_scores.hpp"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "generator/families/wgmma_layout.hpp"
#include "generator/families/wgmma_lists.hpp"

namespace flashjit::wgmma_forward {

namespace {

// The register of a score: `group` is its group of eight columns, `row` one of the thread's two rows, `which`
// one of the two scores there.
int score(int group, int row, int which) {
  return 4 * group + 2 * row + which;
}

// Operands 0 and 1: the first column that each row does not see.
Lines hidden(int groups) {
  Lines lines;
  for (int group = 0; group < groups; ++group) {
    for (int which = 0; which < 2; ++which) {
      for (int row = 0; row < 2; ++row) {
        add_line(lines, fmt::format("setp.le.s32 hidden, %{}, {}; @hidden mov.f32 s{}, 0fff800000;", row,
                                    8 * group + which, score(group, row, which)));
      }
    }
  }
  return lines;
}

// Operands 0 and 1: the largest score of each row. A row's chains of maxima are x0, x1, …; each begins with
// one score.
Lines peaks(int groups, int chains) {
  Lines lines;
  for (int row = 0; row < 2; ++row) {
    std::vector<std::string> chain;
    for (int i = 0; i < 2 * groups; ++i) {
      const std::string next = fmt::format("s{}", score(i / 2, row, i % 2));
      if (i < chains) {
        chain.push_back(next);
        continue;
      }
      std::string& at = chain[i % chains];
      add_line(lines, fmt::format("max.f32 x{}, {}, {};", i % chains, at, next));
      at = fmt::format("x{}", i % chains);
    }
    for (int width = chains / 2; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) {
        const std::string to = width == 1 ? fmt::format("%{}", row) : fmt::format("x{}", i);
        add_line(lines, fmt::format("max.f32 {}, {}, {};", to, chain[i], chain[i + width]));
        chain[i] = to;
      }
    }
  }
  return lines;
}

// For groups `first` to `end` - 1. Operands: the rows' sums, the scale, and the negated shifts. A row's sum
// runs in two chains, one over even and one over odd columns: x0 and x1 for the first row, x2 and x3 for the
// second. Group 0 starts the sum.
Lines exponentials(int first, int end) {
  Lines lines;
  for (int row = 0; row < 2; ++row) {
    for (int group = first; group < end; ++group) {
      for (int which = 0; which < 2; ++which) {
        const int s = score(group, row, which), x = 2 * row + which;
        const std::string before = group > first             ? fmt::format("x{}", x)
                                   : first > 0 && which == 0 ? fmt::format("%{}", row)
                                                             : "";
        const std::string sum = before.empty() ? fmt::format("mov.f32 x{}, s{};", x, s)
                                               : fmt::format("add.f32 x{}, {}, s{};", x, before, s);
        add_line(lines, fmt::format("fma.rn.f32 s{0}, s{0}, %2, %{1}; ex2.approx.ftz.f32 s{0}, s{0}; {2}", s,
                                    3 + row, sum));
      }
    }
  }
  for (int row = 0; row < 2; ++row)
    add_line(lines, fmt::format("add.f32 %{}, x{}, x{};", row, 2 * row, 2 * row + 1));
  return lines;
}

Lines packed(int groups, DType dtype) {
  Lines lines;
  for (int i = 0; i < 2 * groups; ++i) {
    add_line(lines, fmt::format("cvt.rn.{}x2.f32 p{}, s{}, s{};", ptx_type(dtype), i, 2 * i + 1, 2 * i));
  }
  return lines;
}

// Operands 0 and 1: addresses of this thread's elements in its two rows of Q. Operand 2: the same in its
// first key. Operand 3: bytes from there to the next eight keys. Where the head dim ends halfway through a
// step, the other half is zeros unless the step is whole.
Lines products(int groups, DType dtype, bool half_step) {
  const char* type = ptx_type(dtype);
  Lines lines;
  const auto load = [&](const char* to, const char* from) {
    if (half_step) add_line(lines, fmt::format("mov.b32 {}, 0;", to));
    add_line(lines, fmt::format("{}ld.global.b32 {}, [{} + 16];", half_step ? "@whole " : "", to, from));
  };
  add_line(lines, "ld.global.b32 q0, [%0]; ld.global.b32 q1, [%1];");
  load("q2", "%0");
  load("q3", "%1");
  add_line(lines, "mov.b64 key, %2;");
  for (int group = 0; group < groups; ++group) {
    const std::string four = four_registers(score(group, 0, 0), "s");
    add_line(lines, "ld.global.b32 k0, [key];");
    load("k1", "key");
    add_line(lines, fmt::format("mma.sync.aligned.m16n8k16.row.col.f32.{}.{}.f32", type, type));
    add_line(lines, fmt::format("{}, {{q0, q1, q2, q3}}, {{k0, k1}}, {};", four, four));
    if (group + 1 < groups) add_line(lines, "add.s64 key, key, %3;");
  }
  return lines;
}

}  // namespace

void list_score_registers(Recipe& recipe, const Problem& problem, const WgmmaSchedule& schedule) {
  const int groups = schedule.tile_n / 8;
  const bool in_two = recipe.sections.at("short_values");  // whether exponentials are taken in two parts
  const int first = groups * 3 / 4;
  recipe.lists["scores_hidden"] = hidden(groups);
  recipe.lists["peaks"] = peaks(groups, schedule.max_chains);
  recipe.lists["exponentials"] = in_two ? Lines{} : exponentials(0, groups);
  recipe.lists["first_exponentials"] = in_two ? exponentials(0, first) : Lines{};
  recipe.lists["last_exponentials"] = in_two ? exponentials(first, groups) : Lines{};
  recipe.lists["exponentials_packed"] = packed(groups, problem.dtype);
  recipe.lists["exponentials_scaled"] =
      for_each_register("s", schedule.tile_n / 2, "mul.f32 {0}, {0}, %{1};");
  recipe.lists["score_zeros"] = for_each_register("s", schedule.tile_n / 2, "mov.f32 {0}, 0f00000000;");
  recipe.lists["score_products"] = products(groups, problem.dtype, has_half_step(problem));
}

}  // namespace flashjit::wgmma_forward
