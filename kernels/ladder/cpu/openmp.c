// CPU rung 3: OpenMP.
//
//   #pragma omp parallel for        the compiler writes what rung 2 writes by hand
//
// What limits it: as rung 2.
//
// Next rung: one instruction for several elements.
#include "multiply.h"

void multiply(const Product* of) {
#pragma omp parallel for schedule(static) num_threads(of->threads)
  for (ptrdiff_t row = 0; row < of->m; ++row) multiply_rows(of, row, row + 1);
}
