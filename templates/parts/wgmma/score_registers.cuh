// S of a consumer: the scores of 64 rows and a block of keys, laid out as wgmma's accumulators
// (ptx/wgmma.cuh). Their exponentials take the same place, and P holds these as pairs. Like O
// (output_registers.cuh), S and P have PTX registers of their own, s0, s1, … and p0, p1, …: C++ arrays would
// be operands of each product, and of the pins that keep the compiler from moving reads above the wait for
// it. The accumulators of 16 columns are, in order, the fragment of 16 rows of V.
#pragma once

// Called once, before all that names them.
__device__ __forceinline__ void declare_scores() {
  asm volatile(
      ".reg .f32 s<%0>;\n"
      ".reg .b32 p<%1>;" ::"n"(kTileN / 2),
      "n"(kTileN / 4));
}

// Hides the columns from `first_hidden` on, which is counted for each of the two rows from this thread's
// first column.
__device__ __forceinline__ void hide_scores(int first_hidden0, int first_hidden1) {
  asm volatile(
      "{\n"
      ".reg .pred hidden;\n"
      /*%#scores_hidden%*/
      "/*%line%*/\n"
      /*%/scores_hidden%*/
      "}\n" ::"r"(first_hidden0),
      "r"(first_hidden1));
}

// The largest of this thread's scores of each row, in several chains that run side by side.
__device__ __forceinline__ void find_peaks(float (&peak)[2]) {
  asm volatile(
      "{\n"
      ".reg .f32 x<8>;\n"
      /*%#peaks%*/
      "/*%line%*/\n"
      /*%/peaks%*/
      "}\n"
      : "=f"(peak[0]), "=f"(peak[1]));
}

/*%#short_values%*/
// exp2(scale_log2 * score - shift) in the scores' place: of the first three quarters of the columns, which
// start the sums of each row's exponentials …
__device__ __forceinline__ void take_first_exponentials(float scale_log2, const float (&shift)[2],
                                                        float (&sum)[2]) {
  asm volatile(
      "{\n"
      ".reg .f32 x<4>;\n"
      /*%#first_exponentials%*/
      "/*%line%*/\n"
      /*%/first_exponentials%*/
      "}\n"
      : "=f"(sum[0]), "=f"(sum[1])
      : "f"(scale_log2), "f"(-shift[0]), "f"(-shift[1]));
}

// … and of the others, which join them.
__device__ __forceinline__ void take_last_exponentials(float scale_log2, const float (&shift)[2],
                                                       float (&sum)[2]) {
  asm volatile(
      "{\n"
      ".reg .f32 x<4>;\n"
      /*%#last_exponentials%*/
      "/*%line%*/\n"
      /*%/last_exponentials%*/
      "}\n"
      : "+f"(sum[0]), "+f"(sum[1])
      : "f"(scale_log2), "f"(-shift[0]), "f"(-shift[1]));
}
/*%/short_values%*/
/*%^short_values%*/
// exp2(scale_log2 * score - shift) in the scores' place, and the sum of each row's.
__device__ __forceinline__ void take_exponentials(float scale_log2, const float (&shift)[2],
                                                  float (&sum)[2]) {
  asm volatile(
      "{\n"
      ".reg .f32 x<4>;\n"
      /*%#exponentials%*/
      "/*%line%*/\n"
      /*%/exponentials%*/
      "}\n"
      : "=f"(sum[0]), "=f"(sum[1])
      : "f"(scale_log2), "f"(-shift[0]), "f"(-shift[1]));
}
/*%/short_values%*/

__device__ __forceinline__ void pack_exponentials() {
  asm volatile(
      /*%#exponentials_packed%*/
      "/*%line%*/\n"
      /*%/exponentials_packed%*/
  );
}
/*%#optimistic%*/

// Scales the exponentials by a factor for each of the thread's two rows.
__device__ __forceinline__ void scale_exponentials(const float (&factor)[2]) {
  asm volatile(
      /*%#exponentials_scaled%*/
      "/*%line%*/\n"
      /*%/exponentials_scaled%*/
      ::"f"(factor[0]), "f"(factor[1]));
}

__device__ __forceinline__ void clear_scores() {
  asm volatile(
      /*%#score_zeros%*/
      "/*%line%*/\n"
      /*%/score_zeros%*/
  );
}

// s += q k^T over 16 columns of the head, by the warp's own products (PTX ISA, "mma"). Pointers are to this
// thread's first elements in device memory: of its two rows of Q, and of its first key. Groups of eight keys
// are `eight_rows` elements apart.
/*%#half_step%*/
// If not `whole`, the head dim ends after eight of the columns.
__device__ __forceinline__ void add_score_products(const unsigned short* q_low, const unsigned short* q_high,
                                                   const unsigned short* key, long long eight_rows,
                                                   bool whole) {
/*%/half_step%*/
/*%^half_step%*/
__device__ __forceinline__ void add_score_products(const unsigned short* q_low, const unsigned short* q_high,
                                                   const unsigned short* key, long long eight_rows) {
/*%/half_step%*/
  asm volatile(
      "{\n"
      ".reg .b64 key;\n"
      ".reg .b32 q<4>, k<2>;\n"
      /*%#half_step%*/
      ".reg .pred whole;\n"
      "setp.ne.s32 whole, %4, 0;\n"
      /*%/half_step%*/
      /*%#score_products%*/
      "/*%line%*/\n"
      /*%/score_products%*/
      "}\n" ::"l"(q_low),
      "l"(q_high), "l"(key),
      /*%^half_step%*/
      "l"(2 * eight_rows)
      /*%/half_step%*/
      /*%#half_step%*/
      "l"(2 * eight_rows), "r"(static_cast<int>(whole))
      /*%/half_step%*/
      : "memory");
}
/*%/optimistic%*/
