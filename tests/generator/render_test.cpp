// render() on the real templates: self-contained, the same bytes each time, every line's origin, no tag left.
#include <doctest/doctest.h>

#include <algorithm>

#include "flashjit/error.hpp"
#include "generator/legality.hpp"
#include "generator/render.hpp"

using namespace flashjit;

namespace {

struct Sample {
  DType dtype;
  const char* schedule;
  const char* arch;
};

// A few schedules of each family; every problem below is rendered with those that are legal for it.
constexpr Sample kSamples[] = {
    {DType::fp32, "simt:m64n32w4s1", "sm_75"},           {DType::fp32, "simt:m64n32w4s2", "sm_86"},
    {DType::fp32, "simt:m64n64w4s2l16u2c2pf1", "sm_90"}, {DType::fp32, "simt:m32n16w2s1l4", "sm_120"},
    {DType::fp16, "mma:m64n32w4s1kv1", "sm_75"},         {DType::bf16, "mma:m128n64w4s2", "sm_80"},
    {DType::fp16, "mma:m128n64w8s1kv1qr1c2", "sm_90"},   {DType::bf16, "mma:m64n64w4s3lz0u2", "sm_100"},
    {DType::fp16, "mma:m128n64w4s1kv1p1", "sm_120"},     {DType::bf16, "wgmma:m128n128s2", "sm_90a"},
    {DType::fp32, "mma:m64n32w4s1kv1", "sm_80"},         {DType::fp32, "mma:m128n16w8s1kv1c2", "sm_90"},
    {DType::bf16, "wgmma:m128n80s2qr0p2", "sm_90a"},     {DType::fp16, "wgmma:m64n64s2pp0ov0p0", "sm_90a"},
};

template <class Check>
void for_each_kernel(Check check) {
  int rendered = 0;
  for (const Sample& sample : kSamples) {
    for (const int dim : {8, 64, 72, 128, 256}) {
      for (const int dim_v : {0, 64}) {
        for (const bool causal : {false, true}) {
          for (const bool lse : {false, true}) {
            const Problem problem{
                .dtype = sample.dtype, .head_dim = dim, .head_dim_v = dim_v, .causal = causal, .lse = lse};
            const Schedule schedule = parse_schedule(sample.schedule);
            const Target target = target_of(sample.arch);
            if (!legal(problem, schedule, target)) continue;
            CAPTURE(describe(problem));
            CAPTURE(sample.schedule);
            CAPTURE(sample.arch);
            ++rendered;
            check(problem, schedule, target);
          }
        }
      }
    }
  }
  CHECK(rendered > 100);
}

}  // namespace

TEST_CASE("a kernel is self-contained and has its entry once") {
  for_each_kernel([](const Problem& problem, const Schedule& schedule, const Target& target) {
    const std::vector<KernelSource> kernels = render(problem, schedule, target);
    REQUIRE(kernels.size() == 1);
    const KernelSource& kernel = kernels.front();
    CHECK(kernel.entry == kernel_name(problem, schedule));
    for (const char* left : {"#include", "#pragma once", "/*%", "%*/", "FLASHJIT_ENTRY"}) {
      CAPTURE(left);
      CHECK(kernel.text.find(left) == std::string::npos);
    }
    const auto first = kernel.text.find(" " + kernel.entry + "(");
    CHECK(first != std::string::npos);
    CHECK(kernel.text.find(kernel.entry, first + 2) == std::string::npos);
    CHECK(kernel.text.find(to_string(schedule)) != std::string::npos);
    CHECK(kernel.text.find(target.arch) != std::string::npos);
  });
}

TEST_CASE("geometry is what a launch can ask for") {
  for_each_kernel([](const Problem& problem, const Schedule& schedule, const Target& target) {
    const Geometry geometry = render(problem, schedule, target).front().geometry;
    CHECK(geometry.tile_m == tile_m_of(schedule));
    CHECK(geometry.threads % 32 == 0);
    CHECK(geometry.threads > 0);
    CHECK(geometry.threads <= 1024);
    CHECK(geometry.shared_bytes > 0);
    CHECK(geometry.shared_bytes <= target.shared_per_cta);
  });
}

TEST_CASE("a schedule's level of ptxas is its kernel's, and is in its name, which the cache goes by") {
  const Problem problem{.head_dim = 72};
  const Target target = target_of("sm_90a");
  const KernelSource first = render(problem, parse_schedule("wgmma:m256n64s3qr0pt1"), target).front();
  const KernelSource third = render(problem, parse_schedule("wgmma:m256n64s3qr0"), target).front();
  CHECK(first.ptxas == 1);
  CHECK(third.ptxas == 3);
  CHECK(first.entry == third.entry + "pt1");
}

TEST_CASE("two renders are byte-identical") {
  for_each_kernel([](const Problem& problem, const Schedule& schedule, const Target& target) {
    const KernelSource one = render(problem, schedule, target).front();
    const KernelSource two = render(problem, schedule, target).front();
    CHECK(one.text == two.text);
    CHECK(one.entry == two.entry);
  });
}

TEST_CASE("each line of code is the template's line that its origin names") {
  for_each_kernel([](const Problem& problem, const Schedule& schedule, const Target& target) {
    const KernelSource kernel = render(problem, schedule, target).front();
    REQUIRE(static_cast<long>(kernel.origins.size()) ==
            std::count(kernel.text.begin(), kernel.text.end(), '\n'));
    std::string_view rest = kernel.text;
    int wrong = 0;
    for (const LineOrigin& origin : kernel.origins) {
      const std::string line(rest.substr(0, rest.find('\n')));
      rest.remove_prefix(line.size() + 1);
      if (origin.file.empty()) continue;
      const auto found = embedded_templates().find(origin.file);
      REQUIRE(found != embedded_templates().end());
      std::string_view text = found->second;
      for (int i = 1; i < origin.line; ++i) text.remove_prefix(text.find('\n') + 1);
      std::string_view source = text.substr(0, text.find('\n'));
      // Lines with tags inside come out changed; all others as they were.
      const bool plain = source.find("/*%") == std::string_view::npos &&
                         source.find("FLASHJIT_ENTRY") == std::string_view::npos;
      if (plain && source != line) ++wrong;
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("what a problem does not need is absent from its source") {
  const auto text = [](const Problem& problem, const char* schedule, const char* arch) {
    return render(problem, parse_schedule(schedule), target_of(arch)).front().text;
  };
  const Problem fp32{.dtype = DType::fp32, .head_dim = 64};
  CHECK(text(fp32, "simt:m64n32w4s2", "sm_80").find("cp.async.cg") != std::string::npos);
  CHECK(text(fp32, "simt:m64n32w4s1", "sm_75").find("cp.async.cg") == std::string::npos);
  Problem without = fp32;
  without.lse = false;
  CHECK(text(without, "simt:m64n32w4s2", "sm_80").find("lse[") == std::string::npos);
  const Problem bf16{.dtype = DType::bf16, .head_dim = 64};
  CHECK(text(bf16, "mma:m64n64w4s2", "sm_80").find(".f16.f16") == std::string::npos);
}

TEST_CASE("an override of one template changes the kernel and nothing else") {
  const Problem problem{.dtype = DType::fp32, .head_dim = 64};
  const Schedule schedule = parse_schedule("simt:m64n32w4s2");
  const Target target = target_of("sm_80");
  TemplateSet edited = embedded_templates();
  std::string& softmax = edited.at("parts/simt/softmax.cuh");
  softmax += "// edited\n";
  const std::string before = render(problem, schedule, target).front().text;
  std::string after = render(problem, schedule, target, edited).front().text;
  const auto mark = after.find("// edited\n");
  REQUIRE(mark != std::string::npos);
  CHECK(after.erase(mark, 10) == before);
  softmax += "/*%#nosuch%*/\n";
  try {
    static_cast<void>(render(problem, schedule, target, edited));
    FAIL("rendered");
  } catch (const Error& error) {  // the mistake is not ours
    CHECK(error.code() == ErrorCode::invalid_argument);
    CHECK(error.message().find("template parts/simt/softmax.cuh:") == 0);
  }
}
