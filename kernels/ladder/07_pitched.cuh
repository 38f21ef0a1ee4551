// Rung 7: rows that begin at multiples of 256 bytes (pitched allocation).
//
//   n = 5, as it is        pitched
//   ┌─────────┬──          ┌─────────┬───────┐       A, B and C are copied to memory in which a row takes more than its
//   │0 1 2 3 4│0 1 …       │0 1 2 3 4│       │       elements, so that all rows begin at multiples of 256 bytes. The
//   └─────────┴──          │0 1 2 3 4│       │       kernel is that of rung 6: only the leading dimensions differ.
//                          └─────────┴───────┘
//
// 32 neighboring floats take up to five sectors if their row begins anywhere, and four if it begins at a sector
// (doubles: nine and eight). Rows of a few elements get larger: two doubles take 256 bytes.
//
// What limits it: as rung 6. The copies take time too, so that a pitch pays only for matrices that are used several
// times, and by kernels that global memory limits.
//
// Next rung: a tile that is read down its columns.
#pragma once
#include "kernels/ladder/06_shared_tile.cuh"
