// O of a consumer: 64 rows of kHeadDimV columns, laid out as wgmma's accumulators (ptx/wgmma.cuh). O has PTX
// registers of its own, o0, o1, …, that asm statements name. As a C++ array it would be an operand of each
// statement that uses it, and of all statements in between: the compilers would take up to a tenth longer,
// and could not move softmax's instructions past one another.
#pragma once

// Called once, before all that names them.
__device__ __forceinline__ void declare_output() {
  asm volatile(".reg .f32 o<%0>;" ::"n"(kHeadDimV / 2));
}

__device__ __forceinline__ void clear_output() {
  asm volatile(
      /*%#output_zeros%*/
      "/*%line%*/\n"
      /*%/output_zeros%*/
  );
}

// Scales O by a factor for each of the thread's two rows.
__device__ __forceinline__ void scale_output(const float (&factor)[2]) {
  asm volatile(
      /*%#output_scaled%*/
      "/*%line%*/\n"
      /*%/output_scaled%*/
      ::"f"(factor[0]),
      "f"(factor[1]));
}
/*%#split%*/

__device__ __forceinline__ void read_output(float (&o)[kHeadDimV / 2]) {
  asm volatile(
      /*%#output_reads%*/
      "/*%line%*/\n"
      /*%/output_reads%*/
      :
      /*%#output_copies%*/
      /*%line%*/
      /*%/output_copies%*/
  );
}
/*%/split%*/
/*%#even%*/

// Stores, loads and adds what a thread has of a tile in device memory. The next of its pieces is 128 pieces
// further (pieces.cuh).
__device__ __forceinline__ void put_output(float4* pieces) {
  asm volatile(
      /*%#output_put%*/
      "/*%line%*/\n"
      /*%/output_put%*/
      ::"l"(pieces)
      : "memory");
}

__device__ __forceinline__ void take_output(const float4* pieces) {
  asm volatile(
      /*%#output_taken%*/
      "/*%line%*/\n"
      /*%/output_taken%*/
      ::"l"(pieces)
      : "memory");
}

// o = before * o + weight * piece, for each of the thread's two rows.
__device__ __forceinline__ void add_output(const float4* pieces, const float (&before)[2],
                                           const float (&weight)[2]) {
  asm volatile(
      "{\n"
      ".reg .f32 x<4>;\n"
      /*%#output_added%*/
      "/*%line%*/\n"
      /*%/output_added%*/
      "}\n" ::"l"(pieces),
      "f"(before[0]), "f"(before[1]), "f"(weight[0]), "f"(weight[1])
      : "memory");
}
/*%/even%*/
