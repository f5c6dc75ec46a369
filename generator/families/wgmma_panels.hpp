// What both passes of family wgmma have in shared memory: tiles in panels of 64 columns of 16 bits, after
// which TMA's widest swizzle repeats, and tickets, the numbers of tiles that come off a counter.
#pragma once

namespace flashjit::wgmma {

constexpr int kPanelColumns = 64, kRowBytes = 128;  // of a panel

constexpr int panels_of(int columns) {
  return (columns + kPanelColumns - 1) / kPanelColumns;
}

constexpr int kTicketBytes = 40;  // two tickets on their way, and their barriers

}  // namespace flashjit::wgmma
