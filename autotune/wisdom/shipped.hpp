// The wisdom tables of autotune/wisdom/, compiled in by cmake/embed.cmake.
#pragma once

#include <string_view>
#include <vector>

namespace flashjit {

struct ShippedTable {
  std::string_view path;  // "sm_90a.jsonl"
  std::string_view text;
};
std::vector<ShippedTable> shipped_tables();

}  // namespace flashjit
