// The tables of all files, in the order in which patterns are tried, for the CPU that runs this.
#include "emulator/exec/tables.hpp"

#include <vector>

namespace flashjit::emulator {

bool using_avx2() {
#if defined(__x86_64__)
  // F16C is older than AVX2, and clang 14 cannot test for it.
  static const bool yes = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return yes;
#else
  return false;
#endif
}

std::span<const std::span<const Opcode>> opcode_tables() {
  using Tables = std::vector<std::span<const Opcode>>;
  static const Tables all = [] {
    using namespace portable;
    Tables tables = {packed_rows(),  control_rows(),  load_store_rows(), atomic_rows(), shuffle_rows(),
                     barrier_rows(), mbarrier_rows(), cp_async_rows(),   bulk_rows()};
    auto add = [&](std::initializer_list<std::span<const Opcode>> more) {
      tables.insert(tables.end(), more);
    };
#if defined(__x86_64__)
    if (using_avx2()) {
      add({avx2::integer_rows(), avx2::bits_rows(), avx2::compare_rows(), avx2::move_rows(),
           avx2::float_rows(), avx2::convert_rows(), avx2::convert_narrow_rows(), avx2::matrix_rows(),
           avx2::wgmma_rows()});
      return tables;
    }
#endif
    add({integer_rows(), bits_rows(), compare_rows(), move_rows(), float_rows(), convert_rows(),
         convert_narrow_rows(), matrix_rows(), wgmma_rows()});
    return tables;
  }();
  return all;
}

}  // namespace flashjit::emulator
