// CPU rung 4: vectors of 32 bytes (AVX), on one core.
//
//                    column   column + 4 w
//          ┌─────────┬───────────┬──────┐       w elements per vector: 8 floats or 4 doubles. Four vectors of sums,
//       l  │         │▒▒▒▒▒▒▒▒▒▒▒│      │       for 4 w neighboring columns of a row of C, stay in registers while l
//          └─────────┴───────────┴──────┘       goes through a row of A. Each element of A multiplies four vectors.
//                         B
//
// A multiplication is one instruction for w elements. Four sums do not wait for each other. Reads of B are 128 bytes of
// a row at a time.
//
// What limits it: within the caches, one load per multiplication, and only four sums to cover a latency of four clocks
// at two multiplications per clock. Beyond them, B is read once per row of C. And it uses one core. BLAS computes
// several rows together, copies blocks of A and B to where caches hold them, and uses all cores.
//
// Vectors are those of GCC and Clang, which compile for processors without AVX too.
#include <string.h>
#include "multiply.h"

enum { WIDE = 32 / sizeof(REAL), VECTORS = 4 };

typedef REAL Vector __attribute__((vector_size(32)));

void multiply(const Product* of) {
  for (ptrdiff_t row = 0; row < of->m; ++row) {
    const REAL* a = of->A + row * of->lda;
    ptrdiff_t column = 0;
    for (; column + VECTORS * WIDE <= of->n; column += VECTORS * WIDE) {
      Vector sums[VECTORS] = {0};
      for (ptrdiff_t l = 0; l < of->k; ++l) {
        const REAL* b = of->B + l * of->ldb + column;
        for (int v = 0; v < VECTORS; ++v) {
          Vector some;
          memcpy(&some, b + v * WIDE, sizeof some);  // an unaligned load
          sums[v] += a[l] * some;
        }
      }
      for (int i = 0; i < VECTORS * WIDE; ++i) write(of, row, column + i, sums[i / WIDE][i % WIDE]);
    }
    for (; column < of->n; ++column) {
      REAL sum = 0;
      for (ptrdiff_t l = 0; l < of->k; ++l) sum += a[l] * of->B[l * of->ldb + column];
      write(of, row, column, sum);
    }
  }
}
