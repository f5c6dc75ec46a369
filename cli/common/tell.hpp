// Words for people, on stderr. A stderr that is closed or full takes none, and ends no work.
#pragma once

#include <cstdio>
#include <string_view>

namespace flashjit::cli {

inline void tell(std::string_view line) {
  std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
}

// A message of the library's, and what is like one.
inline void tell_message(std::string_view line) {
  std::fprintf(stderr, "flashjit: %.*s\n", static_cast<int>(line.size()), line.data());
}

}  // namespace flashjit::cli
