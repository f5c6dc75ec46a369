// How threads share the columns of a row.
#pragma once

// The size of a group of neighbouring columns as a type, for code that is compiled for each size.
template <int kFloats>
struct Group {
  static constexpr int kCount = kFloats;
};

// kSharers threads have kColumns columns each: as many groups of 4 neighbours as there are, then one of 2,
// then one of 1; within a group the threads lie side by side. Calls act(group, first of the thread's columns,
// first of the row's columns) for each group of thread `sharer`.
template <int kColumns, int kSharers, class Act>
__device__ __forceinline__ void for_each_group(int sharer, Act act) {
  constexpr int kQuads = kColumns / 4;
  constexpr int kPairs = kColumns / 2 % 2;
  constexpr int kSingles = kColumns % 2;
#pragma unroll
  for (int quad = 0; quad < kQuads; ++quad) act(Group<4>{}, 4 * quad, 4 * (quad * kSharers + sharer));
  if constexpr (kPairs != 0) act(Group<2>{}, 4 * kQuads, 4 * kQuads * kSharers + 2 * sharer);
  if constexpr (kSingles != 0) {
    act(Group<1>{}, 4 * kQuads + 2 * kPairs, (4 * kQuads + 2 * kPairs) * kSharers + sharer);
  }
}
