// Rung 10: tiles in shared memory, with the loop over a tile unrolled.
//
//   rung 6                                     rung 10
//   load a, load b, multiply                   load 4 a at once, load b, multiply, load b, multiply, …
//   add 1 to l, compare, branch, addresses     no counter, no branch: addresses are constants in the instructions
//
// The number of passes is known when the kernel is compiled, so the loop can disappear. Four neighboring floats of a
// row of A, or two doubles, then come in one load of 16 bytes. The kernel is that of rung 6, with another argument.
//
// What limits it: 1.25 loads from shared memory per multiplication (doubles: 1.5).
//
// Next rung: a thread computes more than one element of C, and uses each element that it loads more than once.
#pragma once
#include "kernels/ladder/06_shared_tile.cuh"
