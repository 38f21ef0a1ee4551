// Rung 9: the transposed tile with one more column, without bank conflicts.
//
//   tile of B in memory: rows of 33 elements         Element l of row x is in bank (33 x + l) % 32 = (x + l) % 32: the
//            bank 0  bank 1  bank 2  …               32 elements of a column are in 32 banks. The additional column
//     row 0    ▒                                     is never read.
//   x row 1            ▒
//   ↓ row 2                    ▒
//
// Of doubles, 16 threads are served at a time, from all 32 banks: (2 x + 2 l) % 32 and the next. The kernel is that of
// rung 8. Without a reason to transpose a tile, rung 6 needs no cure: a warp reads its rows.
//
// What limits it: two loads from shared memory per multiplication, as in rung 6.
//
// Next rung: the inner loop of rung 6, unrolled.
#pragma once
#include "kernels/ladder/08_bank_conflicts.cuh"
