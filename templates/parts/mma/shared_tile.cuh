// How a tile of 16-bit elements lies in shared memory.
#pragma once

// Rows of kColumns elements, padded with zeros to whole 16-element steps of mma, in chunks of 16 bytes.
// ldmatrix reads the same chunk of 8 neighbouring rows at once, and the 8 must lie in different banks (16
// bytes = 4 banks of 32). A row of kChunks chunks starts kChunks chunks after its neighbour, so chunk c of
// rows with equal row * kChunks mod 8 would collide: those rows exchange their chunks by an XOR, which keeps
// each chunk in its row.
template <int kColumns>
struct SharedTile {
  static constexpr int kChunks = (kColumns + 15) / 16 * 2;
  static constexpr int kPitch = kChunks * 16;  // bytes from row to row
  // Chunks that exchange places: the largest power of 2 up to 8 that divides kChunks.
  static constexpr int kSpan = kChunks % 8 == 0 ? 8 : kChunks % 4 == 0 ? 4 : 2;

  __device__ static unsigned phase(unsigned row) { return row / (8 / kSpan) % kSpan; }

  // Bytes from the tile's start to a chunk.
  __device__ static unsigned offset(unsigned row, unsigned chunk) {
    return row * kPitch + (chunk ^ phase(row)) * 16;
  }

  // From the address of (row, chunk 0 or 1) to that of (row + row_step, chunk + chunk_step), where row_step
  // is a multiple of 8 and chunk_step is even. An XOR will do, since a tile starts at a multiple of 128
  // bytes.
  __device__ static unsigned step(unsigned address, int row_step, int chunk_step) {
    return (address ^ (chunk_step % kSpan * 16)) + row_step * kPitch + chunk_step / kSpan * (kSpan * 16);
  }
};
