// What the CPU rungs share. Each file defines `multiply`, which computes C = alpha · A · B + beta · C.
//
// All matrices are row-major: element (row, column) of A is A[row * lda + column]. The type of an element is given to
// the compiler: -DREAL=float or -DREAL=double. Without beta, C is not read.
#include <stddef.h>

typedef struct {
  const REAL *A, *B;
  REAL* C;
  ptrdiff_t m, n, k, lda, ldb, ldc;
  REAL alpha, beta;
  int threads;  // number of threads, for the rungs that have several
} Product;

void multiply(const Product* of);

static inline void write(const Product* of, ptrdiff_t row, ptrdiff_t column, REAL sum) {
  REAL* c = of->C + row * of->ldc + column;
  *c = of->beta == 0 ? of->alpha * sum : of->alpha * sum + of->beta * *c;
}

// Computes the rows of C from `begin` to `end`, element by element: the serial rung, and a thread's part of others.
static inline void multiply_rows(const Product* of, ptrdiff_t begin, ptrdiff_t end) {
  for (ptrdiff_t row = begin; row < end; ++row) {
    for (ptrdiff_t column = 0; column < of->n; ++column) {
      REAL sum = 0;
      for (ptrdiff_t l = 0; l < of->k; ++l) sum += of->A[row * of->lda + l] * of->B[l * of->ldb + column];
      write(of, row, column, sum);
    }
  }
}
