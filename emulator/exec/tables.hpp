// The rows of every file of handlers. Handlers that compute on vectors are compiled twice, for AVX2 and for
// any CPU.
#pragma once

#include <span>

#include "emulator/decode/opcodes.hpp"

namespace flashjit::emulator {

namespace portable {
std::span<const Opcode> integer_rows();
std::span<const Opcode> bits_rows();
std::span<const Opcode> compare_rows();
std::span<const Opcode> move_rows();
std::span<const Opcode> float_rows();
std::span<const Opcode> convert_rows();
std::span<const Opcode> convert_narrow_rows();
std::span<const Opcode> matrix_rows();
std::span<const Opcode> wgmma_rows();
std::span<const Opcode> packed_rows();
std::span<const Opcode> control_rows();
std::span<const Opcode> load_store_rows();
std::span<const Opcode> atomic_rows();
std::span<const Opcode> shuffle_rows();
std::span<const Opcode> barrier_rows();
std::span<const Opcode> mbarrier_rows();
std::span<const Opcode> cp_async_rows();
std::span<const Opcode> bulk_rows();
}  // namespace portable

namespace avx2 {
std::span<const Opcode> integer_rows();
std::span<const Opcode> bits_rows();
std::span<const Opcode> compare_rows();
std::span<const Opcode> move_rows();
std::span<const Opcode> float_rows();
std::span<const Opcode> convert_rows();
std::span<const Opcode> convert_narrow_rows();
std::span<const Opcode> matrix_rows();
std::span<const Opcode> wgmma_rows();
}  // namespace avx2

}  // namespace flashjit::emulator
