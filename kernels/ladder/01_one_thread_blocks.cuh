// Rung 1: blocks of one thread. A GPU used like a processor with a few cores.
//
//   block          0    1    2    3    0    1    2    …        four blocks of one thread take the elements of C, row by
//   element of C  0,0  0,1  0,2  0,3  0,4  0,5  0,6   …        row, in turn
//
// The kernel is that of rung 2; only the launch differs.
//
// What limits it: a warp has room for 32 threads and executes one instruction for all of them. Here 31 of 32 are idle.
// And a multiprocessor holds few blocks, 32 on most GPUs, so few loads are in flight.
//
// Next rung: the same kernel with full blocks.
#pragma once
#include "kernels/ladder/02_grid_stride.cuh"
