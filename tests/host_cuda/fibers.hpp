// Fibers: stacks of their own between which one OS thread switches. setjmp and longjmp switch without a system call;
// under AddressSanitizer, which wants to be told, swapcontext does.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace cuda_host {

#ifdef __SANITIZE_ADDRESS__
constexpr size_t stack_bytes = 256 << 10;  // redzones take room
#else
constexpr size_t stack_bytes = 64 << 10;
#endif

// One side of a switch: the scheduler's own stack, or a fiber's.
struct Context {
  ucontext_t context;
  jmp_buf registers;
  void* fake_stack = nullptr;
  const void* stack = nullptr;
  size_t stack_size = 0;
  bool started = true;  // false until the first switch to a stack that make_context prepared
};

// A thread that outgrows its stack writes over the stack's low end.
constexpr uint64_t stack_mark = 0x7a5c1e0ff10ad001;
inline void mark_stack(char* stack) { memcpy(stack, &stack_mark, sizeof stack_mark); }
inline bool stack_is_whole(const char* stack) { return memcmp(stack, &stack_mark, sizeof stack_mark) == 0; }

#ifdef __SANITIZE_ADDRESS__

inline void switch_context(Context& from, Context& to) {
  __sanitizer_start_switch_fiber(&from.fake_stack, to.stack, to.stack_size);
  swapcontext(&from.context, &to.context);
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
}

// To be called first thing on a new stack; `from` is where the switch came from.
inline void arrive(Context& from) { __sanitizer_finish_switch_fiber(nullptr, &from.stack, &from.stack_size); }

#else

inline void switch_context(Context& from, Context& to) {
  if (_setjmp(from.registers)) return;
  if (to.started) _longjmp(to.registers, 1);
  to.started = true;
  setcontext(&to.context);
}

inline void arrive(Context&) {}

#endif

// Prepares a context that runs `entry`, which must never return, on `stack`.
inline void make_context(Context& context, char* stack, void (*entry)()) {
  mark_stack(stack);
  getcontext(&context.context);
  context.context.uc_stack = {stack, 0, stack_bytes};
  context.context.uc_link = nullptr;
  makecontext(&context.context, entry, 0);
  context.started = false;
  context.stack = stack;
  context.stack_size = stack_bytes;
}

}  // namespace cuda_host
