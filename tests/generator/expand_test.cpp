// expand(): sections, lists, includes, origins, and a sentence with template and line for everything
// malformed.
#include <doctest/doctest.h>

#include "flashjit/error.hpp"
#include "generator/recipe.hpp"

using namespace flashjit;

namespace {

Recipe recipe_of(std::map<std::string, bool> sections) {
  Recipe recipe;
  recipe.kernel = "kernels/k.cu";
  recipe.sections = std::move(sections);
  return recipe;
}

std::string text_of(const std::string& kernel, std::map<std::string, bool> sections = {}) {
  const TemplateSet templates{{"kernels/k.cu", kernel}};
  return expand(recipe_of(std::move(sections)), templates).text;
}

std::string refusal_of(const TemplateSet& templates, std::map<std::string, bool> sections = {}) {
  try {
    (void)expand(recipe_of(std::move(sections)), templates);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::internal);
    return error.message();
  }
  return "accepted";
}

std::string refusal_of(const std::string& kernel, std::map<std::string, bool> sections = {}) {
  return refusal_of(TemplateSet{{"kernels/k.cu", kernel}}, std::move(sections));
}

}  // namespace

TEST_CASE("a section is shown or absent, and its tags leave no line behind") {
  const std::string kernel = "a;\n/*%#causal%*/\nb;\n/*%/causal%*/\n/*%^causal%*/\nc;\n/*%/causal%*/\nd;\n";
  CHECK(text_of(kernel, {{"causal", true}}) == "a;\nb;\nd;\n");
  CHECK(text_of(kernel, {{"causal", false}}) == "a;\nc;\nd;\n");
}

TEST_CASE("a section may stand inside a line, and twice") {
  const std::string kernel = "f(x /*%#lse%*/, lse /*%/lse%*/);\ng(/*%#lse%*/1/*%/lse%*/);\n";
  CHECK(text_of(kernel, {{"lse", true}}) == "f(x , lse );\ng(1);\n");
  CHECK(text_of(kernel, {{"lse", false}}) == "f(x );\ng();\n");
}

TEST_CASE("blank lines: one at most, none at the top, none for an absent section") {
  CHECK(text_of("\n\na;\n\n\n\nb;\n") == "a;\n\nb;\n");
  CHECK(text_of("a;\n\n/*%#x%*/\nb;\n/*%/x%*/\n\nc;\n", {{"x", false}}) == "a;\n\nc;\n");
  CHECK(text_of("a;  \n \t\nb;") == "a;\n\nb;\n");
}

TEST_CASE("C++ that looks a little like Mustache passes through") {
  const std::string kernel = "x = {{1, 2}, {3}}; /* plain */ y = a % b; z = a &&b < c & d; // {{#no}}\n";
  CHECK(text_of(kernel) == kernel);
}

TEST_CASE("a list is repeated for each of its items") {
  Recipe recipe = recipe_of({{"on", true}});
  recipe.lists["operands"] = {{{"name", "\"+f\"(s[0])"}}, {{"name", "\"+f\"(s[1])"}}};
  const TemplateSet templates{{"kernels/k.cu", "f(\n/*%#operands%*/\n/*%name%*/,\n/*%/operands%*/\n0);\n"}};
  const Rendered rendered = expand(recipe, templates);
  CHECK(rendered.text == "f(\n\"+f\"(s[0]),\n\"+f\"(s[1]),\n0);\n");
  REQUIRE(rendered.origins.size() == 4);
  CHECK(rendered.origins[1].line == 3);
  CHECK(rendered.origins[2].line == 3);
  CHECK(rendered.origins[3].line == 5);
}

TEST_CASE("includes are pasted once, in order, a blank line apart, and none is left") {
  const TemplateSet templates{
      {"kernels/k.cu", "#include \"parts/a.cuh\"\n#include \"parts/b.cuh\"\nint k;\n"},
      {"parts/a.cuh", "// A.\n#pragma once\n\n#include \"ptx/c.cuh\"\n\nint a;\n"},
      {"parts/b.cuh", "#pragma once\n#include \"ptx/c.cuh\"\n#include \"parts/a.cuh\"\nint b;\n"},
      {"ptx/c.cuh", "int c;\n"},
  };
  CHECK(expand(recipe_of({}), templates).text == "int c;\n\n// A.\n\nint a;\n\nint b;\n\nint k;\n");
}

TEST_CASE("a part's comment stands above its code, the kernel's above all") {
  const TemplateSet templates{
      {"kernels/k.cu", "// K.\n#include \"parts/a.cuh\"\n\n// Of k.\nint k;\n"},
      {"parts/a.cuh",
       "// A,\n/*%#x%*/\n// with x.\n/*%/x%*/\n#pragma once\n/*%#x%*/\n#include \"ptx/x.cuh\"\n/*%/x%*/\n"
       "#include \"ptx/c.cuh\"\n\n// Of a.\nint a;\n#include \"ptx/d.cuh\"\nint after_d;\n"},
      {"ptx/c.cuh", "// C.\n#pragma once\n\nint c;\n"},
      {"ptx/d.cuh", "// D.\n#pragma once\n\nint d;\n"},
      {"ptx/x.cuh", "// X.\n#pragma once\n\nint x;\n"},
  };
  const std::string end = "int a;\n\n// D.\n\nint d;\n\nint after_d;\n\n// Of k.\nint k;\n";
  CHECK(expand(recipe_of({{"x", false}}), templates).text ==
        "// K.\n\n// C.\n\nint c;\n\n// A,\n\n// Of a.\n" + end);
  const Rendered with_x = expand(recipe_of({{"x", true}}), templates);
  CHECK(with_x.text ==
        "// K.\n\n// X.\n\nint x;\n\n// C.\n\nint c;\n\n// A,\n// with x.\n\n// Of a.\n" + end);
  REQUIRE(with_x.origins.size() > 10);
  CHECK(with_x.origins[10].file == "parts/a.cuh");
  CHECK(with_x.origins[10].line == 1);
  CHECK(with_x.origins[11].line == 3);
}

TEST_CASE("an include in an absent section is not pasted, nor missed") {
  const std::string kernel = "/*%#x%*/\n#include \"parts/none.cuh\"\n/*%/x%*/\nint k;\n";
  CHECK(text_of(kernel, {{"x", false}}) == "int k;\n");
  CHECK(refusal_of(kernel, {{"x", true}}) == "template parts/none.cuh is missing, wanted by kernels/k.cu:2");
}

TEST_CASE("each line knows where it came from") {
  const TemplateSet templates{
      {"kernels/k.cu", "// top\n#include \"parts/a.cuh\"\n/*%#x%*/\ndropped;\n/*%/x%*/\nlast;\n"},
      {"parts/a.cuh", "#pragma once\nint a;\n"},
  };
  const Rendered rendered = expand(recipe_of({{"x", false}}), templates);
  CHECK(rendered.text == "// top\n\nint a;\n\nlast;\n");
  REQUIRE(rendered.origins.size() == 5);
  CHECK(rendered.origins[0].file == "kernels/k.cu");
  CHECK(rendered.origins[0].line == 1);
  CHECK(rendered.origins[1].file.empty());  // the renderer's own blank line
  CHECK(rendered.origins[2].file == "parts/a.cuh");
  CHECK(rendered.origins[2].line == 2);
  CHECK(rendered.origins[4].file == "kernels/k.cu");
  CHECK(rendered.origins[4].line == 6);
}

TEST_CASE("what is malformed is named with its template and line") {
  const std::map<std::string, bool> abc{{"a", true}, {"b", true}, {"c", false}};
  CHECK(refusal_of("x\n/*%#nosuch%*/\n/*%/nosuch%*/\n", abc) ==
        "template kernels/k.cu:2: kernels/k.cu has no section nosuch");
  CHECK(refusal_of("/*%#a%*/\n/*%#b%*/\n/*%^c%*/\nx\n/*%/c%*/\n/*%/b%*/\n/*%/a%*/\n", abc) ==
        "template kernels/k.cu:3: no section inside a section inside a section: c is in b in a; split the "
        "part");
  CHECK(refusal_of("x\n/*%#a%*/\ny\n", abc) == "template kernels/k.cu:2: section a is not closed");
  CHECK(refusal_of("/*%/a%*/\n", abc) == "template kernels/k.cu:1: section a ends and did not begin");
  CHECK(refusal_of("/*%#a%*/\n/*%#b%*/\n/*%/a%*/\n", abc) ==
        "template kernels/k.cu:3: section a ends inside section b of line 2");
  CHECK(refusal_of("/*%#a\n%*/\n", abc) == "template kernels/k.cu:1: a tag does not end on its line");
  CHECK(refusal_of("int x; %*/\n", abc) == "template kernels/k.cu:1: a tag ends that did not begin");
  CHECK(refusal_of("/*%%*/\n", abc) == "template kernels/k.cu:1: the tag \"\" is malformed");
  CHECK(refusal_of("/*%# a%*/\n", abc) == "template kernels/k.cu:1: the tag \"# a\" is malformed");
  CHECK(refusal_of("/*%!a%*/\n", abc) == "template kernels/k.cu:1: the tag \"!a\" is malformed");
  CHECK(refusal_of("/*%>a%*/\n", abc) == "template kernels/k.cu:1: the tag \">a\" is malformed");
  CHECK(refusal_of("/*%={{ }}=%*/\n", abc) == "template kernels/k.cu:1: the tag \"={{ }}=\" is malformed");
  CHECK(refusal_of("/*%#a%*/\n/*%value%*/\n/*%/a%*/\n", abc) ==
        "template kernels/k.cu:2: no list around gives value a value");
  CHECK(refusal_of("x \x01\n") == "template kernels/k.cu:1: a control character");
}

TEST_CASE("an include of anything but a template is refused") {
  CHECK(refusal_of("#include <cuda_fp16.h>\n") ==
        "template kernels/k.cu:1: a kernel is self-contained; #include may only name another template");
  CHECK(refusal_of("x\n#include \"cuda_fp16.h\"\n") ==
        "template cuda_fp16.h is missing, wanted by kernels/k.cu:2");
  CHECK(refusal_of(TemplateSet{}) == "template kernels/k.cu is missing, wanted by the renderer");
}
