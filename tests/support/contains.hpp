// Whether a text has a part: for messages that must name something.
#pragma once

#include <string>

namespace flashjit::test {

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace flashjit::test
