// Text for people, on stderr. If stderr is closed or full, the text is lost and the work goes on.
#pragma once

#include <cstdio>
#include <string_view>

namespace flashjit::cli {

inline void tell(std::string_view line) {
  std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
}

// A message of the library, or one in the same form.
inline void tell_message(std::string_view line) {
  std::fprintf(stderr, "flashjit: %.*s\n", static_cast<int>(line.size()), line.data());
}

}  // namespace flashjit::cli
