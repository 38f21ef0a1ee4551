// CPU rung 2: threads, each with a part of the rows.
//
//   thread 0   rows 0 … m/t       t threads (POSIX), each with the triple loop. They share A and B, and write different
//   thread 1   rows m/t … 2m/t    rows of C, so that they need not wait for each other until the end.
//   …
//
// What limits it: as before, on every core. Cores share the last cache and the memory.
//
// Next rung: the same by OpenMP.
#include <pthread.h>
#include "multiply.h"

typedef struct {
  const Product* of;
  ptrdiff_t begin, end;
} Part;

static void* run(void* given) {
  const Part* part = given;
  multiply_rows(part->of, part->begin, part->end);
  return NULL;
}

enum { MOST_THREADS = 1024 };

void multiply(const Product* of) {
  pthread_t threads[MOST_THREADS];
  Part parts[MOST_THREADS];
  const int wanted = of->threads < MOST_THREADS ? of->threads : MOST_THREADS;
  int started = 0;
  ptrdiff_t begin = 0;
  for (; started < wanted - 1; ++started) {
    const ptrdiff_t end = of->m * (started + 1) / wanted;
    parts[started] = (Part){of, begin, end};
    if (pthread_create(&threads[started], NULL, run, &parts[started])) break;
    begin = end;
  }
  multiply_rows(of, begin, of->m);  // this thread's part, and the parts of threads that could not be started
  for (int i = 0; i < started; ++i) pthread_join(threads[i], NULL);
}
