// Schedule strings from hostile bytes: a schedule that prints as a string which parses to the same, or an
// Error that quotes the string.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "flashjit/error.hpp"
#include "generator/legality.hpp"
#include "generator/render.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace flashjit;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const Schedule schedule = parse_schedule(text);
    const std::string printed = to_string(schedule);
    if (parse_schedule(printed) != schedule || to_string(parse_schedule(printed)) != printed) std::abort();
    // Whatever the fields say, legality answers, and nothing that it lets pass breaks the renderer.
    for (const DType dtype : {DType::fp32, DType::fp16}) {
      const Problem problem{.dtype = dtype, .head_dim = 72, .head_dim_v = 64, .causal = true};
      for (const char* arch : {"sm_75", "sm_90a"}) {
        const Target target = target_of(arch);
        if (legal(problem, schedule, target) && render(problem, schedule, target).empty()) std::abort();
      }
    }
  } catch (const Error& refused) {
    if (refused.code() != ErrorCode::invalid_argument) std::abort();
    if (refused.message().find(text) == std::string::npos) std::abort();
  }
  return 0;
}
