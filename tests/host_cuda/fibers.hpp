// Fibers: stacks of their own between which one OS thread switches. On x86-64 a few instructions switch, elsewhere
// setjmp and longjmp, without a system call; under AddressSanitizer, which wants to be told, swapcontext does.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
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
constexpr size_t stack_bytes = 60 << 10;  // 512 of them are less than malloc returns to the system each time
#endif
// From a stack to the next. Of stacks a power of two apart, caches would hold the same few lines by turns.
constexpr size_t stack_stride = stack_bytes + 9 * 64;

// One side of a switch: the scheduler's own stack, or a fiber's.
struct Context {
  const void* stack = nullptr;
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
  void* top = nullptr;  // of the stack, where a switch has left the registers
#else
  ucontext_t context;
  jmp_buf registers;
  void* fake_stack = nullptr;
  size_t stack_size = 0;
  bool started = true;  // false until the first switch to a stack that make_context prepared
#endif
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

#elif defined(__x86_64__)

// Pushes the registers that a function must preserve, exchanges the stacks, and pops the other's. The modes of SSE and
// of the x87 are those of the OS thread. A new stack holds 0 six times, and where to begin.
void switch_stack(void** from, void* to) asm("cuda_host_switch_stack");
asm(R"(
.pushsection .text
.local cuda_host_switch_stack
.type cuda_host_switch_stack, @function
cuda_host_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rdx
  jmp *%rdx
.size cuda_host_switch_stack, . - cuda_host_switch_stack
.popsection
)");

inline void switch_context(Context& from, Context& to) { switch_stack(&from.top, to.top); }
inline void arrive(Context&) {}

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
  context.stack = stack;
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
  // The function begins as if it had been called: its stack is 8 bytes off a multiple of 16, with no place to return to.
  void** top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(stack) + stack_bytes) & ~uintptr_t{15}) - 8;
  std::fill_n(top, 8, nullptr);
  top[6] = reinterpret_cast<void*>(entry);
  context.top = top;
#else
  context.stack_size = stack_bytes;
  getcontext(&context.context);
  context.context.uc_stack = {stack, 0, stack_bytes};
  context.context.uc_link = nullptr;
  makecontext(&context.context, entry, 0);
  context.started = false;
#endif
}

}  // namespace cuda_host
