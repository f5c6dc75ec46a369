// Tiles of rows and of keys: 64 of them, since a product of a warpgroup has 64 rows.
#pragma once

#include "parts/wgmma_fp32/split_tile.cuh"

using TileQK = SplitTile<64, kHeadDim>;  // of Q or K
using TileV = SplitTile<64, kHeadDimV>;  // of V or dO
