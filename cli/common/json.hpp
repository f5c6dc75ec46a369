// JSON as every verb prints it.
#pragma once

#include <string>

namespace flashjit::cli {

// For people, too; bytes that are no UTF-8, as in a path, become U+FFFD.
template <class Json>
std::string indented(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace flashjit::cli
