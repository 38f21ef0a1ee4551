// CPU rung 1: the triple loop. The serial time of every speed-up.
//
//   for each row of A
//     for each column of B
//       for each l          sum += A[row][l] · B[l][column]
//
// What limits it: each addition waits for the one before it, four clocks or more. Reads of B are a row of memory apart,
// so that a cache line of 64 bytes is loaded for each element; beyond the size of the caches, from main memory.
//
// Next rung: the rows are shared out to the cores.
#include "multiply.h"

void multiply(const Product* of) { multiply_rows(of, 0, of->m); }
