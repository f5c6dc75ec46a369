// How the host lays out the rows of a backward pass's workspace.
#pragma once

constexpr int kBackwardRowPadding = 128;  // what a head's rows are padded to a multiple of
constexpr int kBackwardCounterRows = 32;  // rows to a counter
