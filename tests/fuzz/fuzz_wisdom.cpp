// Wisdom from hostile bytes: records or reports, and a text that is written as it was read.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "autotune/wisdom.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace flashjit::autotune;
  Wisdom wisdom;
  wisdom.add_text({reinterpret_cast<const char*>(data), size}, "fuzz", [](std::string_view) {});
  const std::string text = wisdom.to_text({});
  Wisdom again;
  if (!again.add_text(text, "again", {}) || again.records().size() != wisdom.records().size()) std::abort();
  if (again.to_text({}) != text) std::abort();
  for (const WisdomRecord& record : wisdom.records()) {
    choose(wisdom, {}, record.problem, record.shape, flashjit::target_of("sm_80"), record.gpu,
           record.versions);
  }
  return 0;
}
