// How the keys of the first ForwardParams::shared_tiles tiles are cut into even shares. Host and device
// compile this one file, so the layout cannot drift.
#pragma once

// The keys lie in one row, counted in blocks, or under a mask in what tiles weigh
// (parts/wgmma/share_bounds.cuh).
struct ShareRow {
  int unit;  // what the row repeats: the blocks of a tile, or under a mask what the tiles of a head weigh
  int all;   // the row
  // Under a mask:
  int first, past;  // keys that a head's first tile would see, were it full of queries; how many are too many
  int seeing;       // tiles of a head that see a key
};
