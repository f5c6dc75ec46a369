// JSON as all verbs print it.
#pragma once

#include <string>

namespace flashjit::cli {

// Indented for people. Bytes that are not UTF-8, as in a path, become U+FFFD.
template <class Json>
std::string indented(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace flashjit::cli
