// Schedule strings: there and back for random schedules, every refusal in words, kernel names.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>
#include <string>

#include "flashjit/error.hpp"
#include "generator/render.hpp"
#include "generator/schedule.hpp"

using namespace flashjit;

namespace {

std::string refusal_of(std::string_view text) {
  try {
    (void)parse_schedule(text);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid_argument);
    CHECK(error.message().find("schedule \"" + std::string(text) + "\": ") == 0);
    CHECK(error.hint().find("tune --dry-run") != std::string::npos);
    return error.message().substr(text.size() + 13);
  }
  return "accepted";
}

std::string prefix(Pass pass, Family family) {
  return std::string(to_string(family)) + (pass == Pass::backward ? "-backward" : "");
}

constexpr std::array kPasses{Pass::forward, Pass::backward};
constexpr std::array kFamilies{Family::simt, Family::mma, Family::wgmma};

// A schedule with random values, written by hand in random field order.
std::string random_string(Pass pass, Family family, std::mt19937& random) {
  std::vector<std::string> parts;
  for (const ScheduleField& field : fields_of(pass, family)) {
    if (random() % 4 == 0) continue;
    const int value = std::uniform_int_distribution(field.minimum, field.maximum)(random);
    parts.push_back(std::string(field.letters) + std::to_string(value));
  }
  std::shuffle(parts.begin(), parts.end(), random);
  std::string text = prefix(pass, family) + ":";
  for (const std::string& part : parts) text += part;
  return text;
}

}  // namespace

TEST_CASE("random schedules survive printing and parsing") {
  std::mt19937 random(7);
  for (int i = 0; i < 12'000; ++i) {
    const Pass pass = kPasses[random() % 2];
    const Family family = kFamilies[random() % 3];
    const std::string text = random_string(pass, family, random);
    CAPTURE(text);
    const Schedule schedule = parse_schedule(text);
    CHECK(family_of(schedule) == family);
    CHECK(pass_of(schedule) == pass);
    CHECK(parse_schedule(to_string(schedule)) == schedule);
    CHECK(to_string(parse_schedule(to_string(schedule))) == to_string(schedule));
    CHECK(get(schedule, "tile_m") == tile_m_of(schedule));
  }
}

TEST_CASE("a string says tiles, warps and stages, then what differs from the default") {
  CHECK(to_string(Schedule{SimtSchedule{}}) == "simt:m128n64w4s2");
  CHECK(to_string(Schedule{MmaSchedule{}}) == "mma:m128n64w4s2");
  CHECK(to_string(Schedule{WgmmaSchedule{}}) == "wgmma:m128n128s2");
  CHECK(to_string(Schedule{SimtSchedule{.lanes = 16, .prefetch = 1}}) == "simt:m128n64w4s2l16pf1");
  CHECK(parse_schedule("mma") == Schedule{MmaSchedule{}});
  CHECK(parse_schedule("mma:") == Schedule{MmaSchedule{}});
  CHECK(parse_schedule("mma:s3n32") == Schedule{MmaSchedule{.tile_n = 32, .stages = 3}});
}

TEST_CASE("fields: letters and names are unique, defaults are within bounds, meanings are there") {
  for (const Pass pass : kPasses) {
    for (const Family family : kFamilies) {
      std::set<std::string_view> letters;
      std::set<std::string_view> names;
      const Schedule defaults = parse_schedule(prefix(pass, family));
      for (const ScheduleField& field : fields_of(pass, family)) {
        CAPTURE(field.name);
        CHECK(letters.insert(field.letters).second);
        CHECK(names.insert(field.name).second);
        CHECK_FALSE(field.meaning.empty());
        CHECK(get(defaults, field.name) >= field.minimum);
        CHECK(get(defaults, field.name) <= field.maximum);
      }
    }
  }
}

TEST_CASE("a field that a family does not have is a bug of the caller") {
  CHECK_THROWS_WITH_AS(get(SimtSchedule{}, "lazy"), "family simt has no schedule field lazy", Error);
}

TEST_CASE("what cannot be read is quoted") {
  CHECK(refusal_of("") ==
        "the family is \"\", may be simt, mma or wgmma, or one of these with \"-backward\"");
  CHECK(refusal_of("fma:m64") ==
        "the family is \"fma\", may be simt, mma or wgmma, or one of these with \"-backward\"");
  CHECK(refusal_of(":m64") ==
        "the family is \"\", may be simt, mma or wgmma, or one of these with \"-backward\"");
  CHECK(refusal_of("mma:x3") == "unknown field \"x\"");
  CHECK(refusal_of("mma:64") == "a knob's letters must come before \"64\"");
  CHECK(refusal_of("mma:M64") == "a knob's letters must come before \"M64\"");
  CHECK(refusal_of("mma:m") == "a number must follow \"m\"");
  CHECK(refusal_of("mma:m n64") == "a number must follow \"m\"");
  CHECK(refusal_of("mma:m64 n64") == "a knob's letters must come before \" n64\"");
  CHECK(refusal_of("mma:m64m64") == "tile_m is given twice");
  CHECK(refusal_of("mma:m0") == "tile_m is 0, may be 16 to 256");
  CHECK(refusal_of("mma:m-64") == "tile_m is -64, may be 16 to 256");
  CHECK(refusal_of("mma:w99") == "warps is 99, may be 1 to 16");
  CHECK(refusal_of("wgmma-backward:s3") == "stages is 3, may be 1 to 2");
  CHECK(refusal_of("mma:m99999999999") == "the number after \"m\" is too large");
  CHECK(refusal_of("simt:qr1") == "unknown field \"qr\"");
}

TEST_CASE("kernel names hold problem and schedule, and are C identifiers") {
  CHECK(kernel_name(Problem{.head_dim = 128, .causal = true}, parse_schedule("mma:m128n64w4s2")) ==
        "flashjit_forward_mma_bf16_d128_causal_m128n64w4s2");
  CHECK(kernel_name(Problem{.dtype = DType::fp32, .head_dim = 64, .head_dim_v = 40, .lse = false},
                    parse_schedule("simt:m64n32w4s1l4")) ==
        "flashjit_forward_simt_fp32_d64v40_nolse_m64n32w4s1l4");
  CHECK(kernel_name(Problem{.dtype = DType::fp16, .head_dim = 64}, parse_schedule("wgmma:m128n128s2")) ==
        "flashjit_forward_wgmma_fp16_d64_m128n128s2");
}
