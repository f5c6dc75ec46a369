// Tiles of rows and of keys in shared memory: 64 of them, since a product of a warpgroup has 64 rows.
#pragma once

#include "parts/wgmma_fp32/split_tile.cuh"

static_assert(kTileM == 64 && kTileN == 64, "rows and keys are tiles of the same kind");
using TileQK = SplitTile<64, kHeadDim>;           // of Q or K
using TileV = SplitTile<64, kHeadDimV>;           // of V or dO
constexpr int kPanelColumns = 64;                 // and so many columns of a gradient are one product
constexpr int kPBytes = 64 * 64 * sizeof(float);  // of P, which is not split
