// What kernels and intrinsics.hpp ask of the runner. Short, and of few headers, as every kernel's test compiles it;
// runtime.cpp, which does the work, is compiled once.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace cuda_host {

constexpr int warp_lanes = 32;

// The CUDA thread that runs now on this OS thread. Constant initialisation: nothing runs at the first access.
struct Here {
  uint3 thread_index;
  int lane;
  uint3 block_index;
  dim3 block_size, grid_size;
  unsigned char* shared;  // dynamic
};
extern constinit thread_local Here here;

// Ends the launch with an error.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Runs `kernel(context)` once for every thread of the grid; returns when all have ended, or at the first error.
// The blocks are in clusters of `cluster_size` neighbors.
void launch(dim3 grid, dim3 size, size_t shared_bytes, unsigned cluster_size, void (*kernel)(const void*),
            const void* context);

template <typename Kernel>
void launch(dim3 grid, dim3 size, size_t shared_bytes, const Kernel& kernel, unsigned cluster_size = 1) {
  const auto run = [](const void* it) { (*static_cast<const Kernel*>(it))(); };
  launch(grid, size, shared_bytes, cluster_size, run, &kernel);
}

// A kernel's parameters: launches it as the driver does, by the address of each argument; their sizes, and their kinds:
// pointer, floating, class or integer.
template <typename... P>
struct Parameters {
  static constexpr int count = sizeof...(P);
  static void launch(void (*kernel)(P...), const unsigned* sizes, size_t shared_bytes, void* const* arguments) {
    launch(kernel, sizes, shared_bytes, arguments, std::index_sequence_for<P...>{});
  }
  static void write(size_t* sizes, char* kinds) {
    ((*sizes++ = sizeof(P)), ...);
    ((*kinds++ = std::is_pointer_v<P> ? 'p' : std::is_floating_point_v<P> ? 'f' : std::is_class_v<P> ? 'c' : 'i'), ...);
  }

 private:
  template <size_t... I>
  static void launch(void (*kernel)(P...), const unsigned* sizes, size_t shared_bytes, void* const* arguments,
                     std::index_sequence<I...>) {
    const dim3 grid(sizes[0], sizes[1], sizes[2]), block(sizes[3], sizes[4], sizes[5]);
    cuda_host::launch(grid, block, shared_bytes, [=] { kernel(*static_cast<const P*>(arguments[I])...); }, sizes[6]);
  }
};
template <typename... P>
Parameters<P...> parameters_of(void (*)(P...));

// Exports a kernel, by its name expression, for HostMachine.
#define EXPORT_KERNEL(name, ...)                                                                            \
  constexpr auto* exported_##name = __VA_ARGS__;                                                            \
  using Of_##name = decltype(cuda_host::parameters_of(exported_##name));                                    \
  extern "C" void launch_##name(const unsigned* sizes, unsigned long long shared, void* const* arguments) { \
    Of_##name::launch(exported_##name, sizes, shared, arguments);                                           \
  }                                                                                                         \
  extern "C" int parameters_##name(size_t* sizes, char* kinds) {                                            \
    Of_##name::write(sizes, kinds);                                                                         \
    return Of_##name::count;                                                                                \
  }

// Waits for all threads of the block that have not ended; `line` is where, in the source.
void wait_for_block(const char* what, unsigned line);

// Arrives at one of the block's barriers 1 to 15, of `threads` threads; `waits`: and goes on once all have.
void wait_for_some(int id, int threads, bool waits);

// The most that a lane hands to the others at one exchange.
constexpr size_t slot_bytes = 128;

// Hands `value` to the other lanes of `mask`, and returns what all of them hand out, side by side, once all have; bytes
// 0xFF of a lane that takes no part.
const void* exchange(unsigned mask, const void* value, size_t bytes, const char* what);

template <typename T>
struct Lanes {
  const T* values;
  const T& operator[](int lane) const { return values[lane]; }
};

template <typename T>
Lanes<T> publish(unsigned mask, const T& value, const char* what) {
  static_assert(sizeof value <= slot_bytes);
  return {static_cast<const T*>(exchange(mask, &value, sizeof value, what))};
}

// The same for instructions that need the whole warp.
void need_whole_warp(const char* what);
template <typename T>
Lanes<T> publish_to_warp(const T& value, const char* what) {
  need_whole_warp(what);
  return publish(~0u, value, what);
}

// What the host bodies of cp.async do. `read` is `bytes`, or 0 to write zeros.
void copy_async(void* to, const void* from, size_t read, size_t bytes);
void commit_copies();
void wait_for_copies(size_t pending);  // this thread's, but for its `pending` latest groups

// What the host bodies of wgmma do: a warp's `run(context)` begins now, or as late as the contract allows.
void begin_work(void (*run)(void*), void* context);
void commit_work();
void wait_for_work(size_t pending);  // this warp's, but for its `pending` latest groups

template <typename Work>
void begin_work(const Work& work) {
  begin_work(
      [](void* it) {
        (*static_cast<Work*>(it))();
        delete static_cast<Work*>(it);
      },
      new Work(work));
}

// What the host bodies of bulk copies and their barriers do. A copy lands at once, or when nothing else can go on.
void mbarrier_init(unsigned long long* barrier, int arrivals);
void mbarrier_arrive(unsigned long long* barrier, int bytes);  // announces so many
void mbarrier_wait(unsigned long long* barrier, unsigned parity);
void bulk_copy(void* to, const void* from, size_t bytes, unsigned long long* barrier);
void arrive_with_copies(unsigned long long* barrier);  // once those of this thread's copy_async have landed

// What the host bodies for clusters do: `shared` in the block with number `rank` of this cluster, and so on.
unsigned cluster_rank();
void wait_for_cluster();
void* in_block(const void* shared, unsigned rank);
void arrive_in_block(unsigned long long* barrier, unsigned rank);

// What the host bodies of tensor copies do. `map` is what `HostMachine.tensor_map` returns; `ranks` has a bit for each
// block that receives the box. Stores happen at once, or when this thread waits for them.
void tensor_load(void* shared, const unsigned long long* map, int x, int y, unsigned long long* barrier, unsigned ranks);
void tensor_store(const unsigned long long* map, int x, int y, const void* shared);
void commit_stores();
void wait_for_stores(size_t pending);  // this thread's, but for its `pending` latest groups

inline void check_aligned(const void* address, size_t bytes, const char* what) {
  if (reinterpret_cast<uintptr_t>(address) % bytes) {
    fail("%s of %zu bytes at an address that is no multiple of it", what, bytes);
  }
}

}  // namespace cuda_host
