// Blocks of CUDA threads: the launch, the scheduler, barriers, warps, shared memory.
//
// A cluster of blocks, mostly of one, runs on one OS thread, which resumes their fibers in turn; a fiber runs until it
// waits at a barrier (of the cluster, of the block, or of some lanes of its warp) or ends. Blocks of a cluster of several
// share their static shared memory here, so that their kernels must have none. Environment variables, read at each launch, vary what CUDA leaves open:
//
//   TSA_SEED=n        n ≠ 0: the threads of a block, and the blocks, run in an order drawn from n; 0: in their own.
//                     n odd: and one warp at a time, until it can go no farther without the others
//   TSA_COPIES=early  asynchronous copies and products are done at once; otherwise as late as the contract allows
//   TSA_THREADS=n     OS threads; by default one a core
//
// Shared memory holds NaNs (every byte is 0xFF) when a block begins. Errors end the launch, and the message waits for
// `cuda_host_take_error`, as an exception cannot pass through a caller in C.
#include "runtime.hpp"

#include <link.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fibers.hpp"

namespace cuda_host {

constinit thread_local Here here{};

namespace {

constexpr size_t largest_shared = 227 << 10;

struct Barrier {
  int expected = 0, arrived = 0;
  unsigned generation = 0;
  unsigned line = 0;  // in the source, of those who wait; 0 where it is not known
};

// The lanes of a warp that act together under one mask, and what each hands to the others. Two sets of slots by turns:
// a lane may still be reading the last exchange while another writes the next.
struct Group {
  unsigned mask = 0;
  Barrier barrier;
  size_t bytes = 0;  // of what each hands out now
  alignas(64) unsigned char slots[2][warp_lanes * slot_bytes];
};

struct Warp {
  unsigned alive = 0;
  std::list<Group> groups;
};

// One asynchronous copy that has not landed.
struct Copy {
  void* to;
  const void* from;
  size_t read, bytes;
};

void land(const Copy& copy) {
  memset(copy.to, 0, copy.bytes);
  memcpy(copy.to, copy.from, copy.read);
}

// One asynchronous product that is not done.
struct Work {
  void (*run)(void*);
  void* context;
};

// What 8 bytes of shared memory hold of a barrier: arrivals that a phase expects, whether somebody has waited for the phase
// before, arrivals and bytes that are still to come, and the parity of the phase.
struct Mbarrier {
  unsigned short expected : 15, awaited : 1;
  short missing;
  int bytes_and_parity;  // 2 · bytes + parity

  int bytes() const { return bytes_and_parity >> 1; }
  unsigned parity() const { return bytes_and_parity & 1; }
  // The next phase, if this one is over.
  void advance() {
    if (missing == 0 && bytes() == 0) *this = {expected, 0, (short)expected, (int)(parity() ^ 1)};
  }
};
static_assert(sizeof(Mbarrier) == 8);

Mbarrier& of(unsigned long long* barrier) { return *reinterpret_cast<Mbarrier*>(barrier); }
const Mbarrier& of(const unsigned long long* barrier) { return *reinterpret_cast<const Mbarrier*>(barrier); }

struct Block;

// Copies that have not landed, and what their barrier then hears: that so many announced bytes came, and so many arrivals.
struct Landing {
  std::vector<Copy> copies;
  unsigned long long* barrier;
  int announced, arrivals;
  const Block* block;  // to whose shared memory

  void land() const {
    for (const Copy& copy : copies) cuda_host::land(copy);
    Mbarrier& here = of(barrier);
    here.bytes_and_parity -= 2 * announced;
    here.missing -= (short)arrivals;
    here.advance();
  }
};

struct Fiber {
  Context context;
  Context* scheduler;
  Block* block;
  uint3 index;
  int lane;
  Warp* warp;
  bool done;
  Barrier* waits_at;
  unsigned generation;
  const char* waits_in;
  const unsigned long long* waits_for;  // the end of this barrier's phase of `parity`
  unsigned parity;
  std::vector<Copy> open;                 // since the last commit
  std::vector<std::vector<Copy>> groups;  // committed, oldest first
  std::vector<Work> begun;                // since the last commit
  std::vector<std::vector<Work>> working;
  std::vector<Copy> stores;                     // to global memory, since the last commit
  std::vector<std::vector<Copy>> store_groups;  // committed, oldest first
};

struct Block {
  uint3 index;
  unsigned rank;  // in its cluster
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  Barrier barrier, some[16];  // of the whole block, and those that `wait_for_some` counts
  unsigned char* shared = nullptr;

  bool has_ended() const { return std::ranges::all_of(fibers, &Fiber::done); }
};

struct Cluster {
  Context scheduler;
  std::vector<Block> blocks;
  std::vector<Landing> under_way;
  Barrier barrier;
  void (*kernel)(const void*) = nullptr;
  const void* context = nullptr;
  std::string error;
};

struct Schedule {
  unsigned seed;
  bool early_copies;
  unsigned threads;
};

// What this OS thread is doing, beside `here`.
struct Doing {
  Cluster* cluster;
  Block* block;
  Fiber* fiber;
  Schedule schedule;
};
constinit thread_local Doing doing{};

Schedule schedule_from_environment() {
  const char *seed = getenv("TSA_SEED"), *copies = getenv("TSA_COPIES"), *threads = getenv("TSA_THREADS");
  const unsigned wanted = threads ? (unsigned)atoi(threads) : std::thread::hardware_concurrency();
  return {seed ? (unsigned)atoi(seed) : 0, copies && !strcmp(copies, "early"), std::max(1u, wanted)};
}

// --- Barriers -------------------------------------------------------------------------------------------------------

void release(Barrier& barrier) {
  barrier.arrived = 0;
  ++barrier.generation;
}

// Waits until all expected threads have arrived. The last one waits for its turn too, so that any may go on first.
inline void wait(Fiber& me, Barrier& barrier, const char* what, unsigned line = 0) {
  if (barrier.arrived == 0) {
    barrier.line = line;
  } else if (barrier.line != line) {
    fail("%s in divergent code: some threads wait at line %u, others at line %u", what, barrier.line, line);
  }
  me.waits_at = &barrier;
  me.generation = barrier.generation;
  me.waits_in = what;
  if (++barrier.arrived == barrier.expected) release(barrier);
  switch_context(me.context, *me.scheduler);
}

inline Group& group_of(Warp& warp, unsigned mask) {
  for (Group& group : warp.groups) {
    if (group.mask == mask) return group;
  }
  Group& group = warp.groups.emplace_back();
  group.mask = mask;
  group.barrier.expected = std::popcount(mask & warp.alive);
  return group;
}

// A thread that has ended is not waited for.
void leave() {
  Fiber& me = *doing.fiber;
  for (Barrier* barrier : {&doing.block->barrier, &doing.cluster->barrier}) {
    if (--barrier->expected == barrier->arrived && barrier->arrived) release(*barrier);
  }
  me.warp->alive &= ~(1u << me.lane);
  for (Group& group : me.warp->groups) {
    group.barrier.expected = std::popcount(group.mask & me.warp->alive);
    if (group.barrier.arrived && group.barrier.arrived == group.barrier.expected) release(group.barrier);
  }
}

// --- Shared memory --------------------------------------------------------------------------------------------------

// The part of memory that holds this OS thread's copy of the library's thread-local variables, which is where static
// shared memory lies.
struct Range {
  unsigned char* begin = nullptr;
  size_t bytes = 0;
};

Range thread_local_range() {
  Range range;
  dl_iterate_phdr(
      [](dl_phdr_info* library, size_t, void* out) {
        for (int i = 0; i < library->dlpi_phnum; ++i) {
          const auto& segment = library->dlpi_phdr[i];
          auto* begin = static_cast<unsigned char*>(library->dlpi_tls_data);
          auto* mine = reinterpret_cast<unsigned char*>(&here);
          if (segment.p_type != PT_TLS || !begin || mine < begin || mine >= begin + segment.p_memsz) continue;
          *static_cast<Range*>(out) = {begin, segment.p_memsz};
          return 1;
        }
        return 0;
      },
      &range);
  return range;
}

void poison_static_shared(const Range& range) {
  const Doing kept = doing;
  memset(range.begin, 0xFF, range.bytes);
  asm volatile("" : : "r"(&doing) : "memory");  // the compiler does not see that `doing` lies in the range
  doing = kept;
}

// --- The launch -----------------------------------------------------------------------------------------------------

// Where every fiber begins; it serves one block after another.
void fiber_entry() {
  arrive(doing.cluster->scheduler);
  while (true) {
    Cluster& cluster = *doing.cluster;
    try {
      cluster.kernel(cluster.context);
      if (!doing.fiber->store_groups.empty()) fail("a thread ends before its stores have read shared memory");
    } catch (const std::exception& error) {
      cluster.error = error.what();
    }
    leave();
    doing.fiber->done = true;
    switch_context(doing.fiber->context, cluster.scheduler);
  }
}

std::string deadlock(const Cluster& cluster) {
  const Block& block = *std::ranges::find_if(cluster.blocks, [](const Block& one) { return !one.has_ended(); });
  int waiting = 0, ended = 0;
  const Fiber* first = nullptr;
  for (const Fiber& fiber : block.fibers) {
    ended += fiber.done;
    waiting += fiber.waits_at == &block.barrier;
    if (!fiber.done && (!first || fiber.waits_at == &block.barrier)) first = &fiber;
  }
  const std::string line = first->waits_at && first->waits_at->line ? " at line " + std::to_string(first->waits_at->line) : "";
  return std::string("deadlock: a thread waits in ") + first->waits_in + line + " for threads that do not come; of " +
         std::to_string(block.fibers.size()) + " threads " + std::to_string(waiting) +
         " wait at the block's barrier and " + std::to_string(ended) + " have ended";
}

bool can_run(const Fiber* fiber) {
  if (fiber->waits_for) return of(fiber->waits_for).parity() != fiber->parity;
  return !fiber->waits_at || fiber->waits_at->generation != fiber->generation;
}

// Runs blocks whose fibers are ready, to their end.
void run_cluster(Cluster& cluster, std::mt19937& random) {
  const bool one_warp_at_a_time = doing.schedule.seed % 2;
  const Warp* running = nullptr;
  std::vector<Fiber*> order;
  for (Block& block : cluster.blocks) {
    for (Fiber& fiber : block.fibers) order.push_back(&fiber);
  }
  while (!order.empty()) {
    bool progress = false;
    if (doing.schedule.seed) std::shuffle(order.begin(), order.end(), random);
    if (one_warp_at_a_time && std::ranges::none_of(order, [=](const Fiber* one) { return one->warp == running && can_run(one); })) {
      const auto next = std::ranges::find_if(order, can_run);
      running = next == order.end() ? nullptr : (*next)->warp;
    }
    for (Fiber* fiber : order) {
      if (!can_run(fiber) || (one_warp_at_a_time && fiber->warp != running)) continue;
      fiber->waits_at = nullptr;
      fiber->waits_for = nullptr;
      progress = true;
      doing.fiber = fiber;
      doing.block = fiber->block;
      here.thread_index = fiber->index;
      here.lane = fiber->lane;
      here.block_index = fiber->block->index;
      here.shared = fiber->block->shared;
      switch_context(cluster.scheduler, fiber->context);
      if (!stack_is_whole(static_cast<const char*>(fiber->context.stack))) {
        fprintf(stderr, "cuda_host: a thread outgrew its stack of %zu bytes\n", stack_bytes);
        abort();  // what it wrote over belongs to another thread
      }
      if (!cluster.error.empty()) return;
    }
    std::erase_if(order, [](const Fiber* fiber) { return fiber->done; });
    if (!order.empty() && !progress && !cluster.under_way.empty()) {
      // Any of the copies under way may be the first to land.
      const size_t one = doing.schedule.seed ? random() % cluster.under_way.size() : 0;
      if (cluster.under_way[one].block->has_ended()) {
        cluster.error = "a copy to the shared memory of a block that has ended";
        return;
      }
      cluster.under_way[one].land();
      cluster.under_way.erase(cluster.under_way.begin() + one);
      continue;
    }
    if (!order.empty() && !progress) {
      cluster.error = deadlock(cluster);
      return;
    }
  }
}

void make_ready(Cluster& cluster, Block& block, dim3 size) {
  const unsigned threads = size.x * size.y * size.z;
  block.warps.clear();
  block.warps.resize((threads + warp_lanes - 1) / warp_lanes);
  block.barrier = {(int)threads};
  for (Barrier& some : block.some) some = {};
  for (unsigned t = 0; t < threads; ++t) {
    Fiber& fiber = block.fibers[t];
    fiber.index = {t % size.x, t / size.x % size.y, t / size.x / size.y};
    fiber.scheduler = &cluster.scheduler;
    fiber.block = &block;
    fiber.lane = t % warp_lanes;
    fiber.warp = &block.warps[t / warp_lanes];
    fiber.warp->alive |= 1u << fiber.lane;
    fiber.done = false;
    fiber.waits_at = nullptr;
    fiber.waits_for = nullptr;
    fiber.open.clear();
    fiber.groups.clear();
    fiber.begun.clear();
    fiber.working.clear();
    fiber.stores.clear();
    fiber.store_groups.clear();
  }
}

std::mutex error_lock;
std::string pending_error;

}  // namespace

void launch(dim3 grid, dim3 size, size_t shared_bytes, unsigned cluster_size, void (*kernel)(const void*), const void* context) {
  const unsigned threads = size.x * size.y * size.z;
  const size_t blocks = (size_t)grid.x * grid.y * grid.z;
  const Schedule schedule = schedule_from_environment();
  std::atomic<size_t> next = 0;
  const auto report = [](const std::string& message) {
    const std::lock_guard guard(error_lock);
    if (pending_error.empty()) pending_error = message;
  };
  if (threads < 1 || threads > 1024 || blocks < 1 || grid.y > 65535 || grid.z > 65535 ||
      shared_bytes > largest_shared || cluster_size < 1 || cluster_size > 8 || grid.x % cluster_size) {
    return report("a launch that no GPU takes: " + std::to_string(blocks) + " blocks of " + std::to_string(threads) +
                  " threads with " + std::to_string(shared_bytes) + " bytes of shared memory, in clusters of " +
                  std::to_string(cluster_size));
  }
  std::vector<size_t> order(blocks / cluster_size);
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  if (schedule.seed) std::shuffle(order.begin(), order.end(), std::mt19937(schedule.seed));

  const auto work = [&] {
    // Before the first, room for what outgrows it until that is seen.
    const auto stacks = std::make_unique_for_overwrite<char[]>(stack_stride * (1 + threads * cluster_size));
    Cluster cluster;
    cluster.kernel = kernel;
    cluster.context = context;
    cluster.blocks.resize(cluster_size);
    const std::align_val_t alignment{1024};  // what swizzled copies need
    for (unsigned rank = 0; rank < cluster_size; ++rank) {
      Block& block = cluster.blocks[rank];
      block.rank = rank;
      block.fibers.resize(threads);
      block.shared = static_cast<unsigned char*>(::operator new(shared_bytes, alignment));
      for (unsigned t = 0; t < threads; ++t) {
        make_context(block.fibers[t].context, &stacks[stack_stride * (1 + rank * threads + t)], fiber_entry);
      }
    }
    doing = {&cluster, nullptr, nullptr, schedule};
    const Range static_shared = thread_local_range();
    for (size_t turn; (turn = next++) < order.size() && cluster.error.empty();) {
      poison_static_shared(static_shared);
      here = {{}, 0, {}, size, grid, nullptr};
      cluster.under_way.clear();
      cluster.barrier = {(int)(threads * cluster_size)};
      for (Block& block : cluster.blocks) {
        const size_t i = order[turn] * cluster_size + block.rank;
        memset(block.shared, 0xFF, shared_bytes);
        block.index = {(unsigned)(i % grid.x), (unsigned)(i / grid.x % grid.y), (unsigned)(i / grid.x / grid.y)};
        make_ready(cluster, block, size);
      }
      std::mt19937 random(schedule.seed + 7919 * (unsigned)order[turn]);
      run_cluster(cluster, random);
    }
    if (!cluster.error.empty()) {
      next = order.size();
      report(cluster.error);
    }
    for (Block& block : cluster.blocks) ::operator delete(block.shared, alignment);
  };
  std::vector<std::thread> pool;
  for (size_t i = 1; i < std::min<size_t>(schedule.threads, order.size()); ++i) pool.emplace_back(work);
  work();
  for (std::thread& thread : pool) thread.join();
}

void fail(const char* format, ...) {
  char message[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  throw std::runtime_error(message);  // caught in `fiber_entry`
}

void wait_for_block(const char* what, unsigned line) { wait(*doing.fiber, doing.block->barrier, what, line); }

void wait_for_some(int id, int threads, bool waits) {
  const char* what = waits ? "bar.sync" : "bar.arrive";
  if (waits) need_whole_warp(what);
  if (id < 1 || id > 15 || threads < 1 || threads % warp_lanes) fail("%s %d, %d: no such barrier", what, id, threads);
  Barrier& barrier = doing.block->some[id];
  if (barrier.arrived && barrier.expected != threads) {
    fail("%s %d of %d threads, where others have %d", what, id, threads, barrier.expected);
  }
  barrier.expected = threads;
  if (waits) return wait(*doing.fiber, barrier, what);
  if (++barrier.arrived == barrier.expected) release(barrier);
}

const void* exchange(unsigned mask, const void* value, size_t bytes, const char* what) {
  Fiber& me = *doing.fiber;
  if (!(mask >> me.lane & 1)) fail("%s: a lane that its own mask leaves out", what);
  Group& group = group_of(*me.warp, mask);
  unsigned char* slots = group.slots[group.barrier.generation & 1];
  if (group.barrier.arrived == 0) {
    group.bytes = bytes;
    memset(slots, 0xFF, warp_lanes * bytes);
  }
  if (group.bytes != bytes) fail("%s of %zu bytes, where other lanes exchange %zu", what, bytes, group.bytes);
  unsigned char* slot = slots + me.lane * bytes;
  if (bytes == 4) {  // without a call, as most are
    memcpy(slot, value, 4);
  } else if (bytes == 8) {
    memcpy(slot, value, 8);
  } else {
    memcpy(slot, value, bytes);
  }
  wait(me, group.barrier, what);
  return slots;
}

void need_whole_warp(const char* what) {
  if (doing.fiber->warp->alive != ~0u) fail("%s needs every lane of the warp", what);
}

void copy_async(void* to, const void* from, size_t read, size_t bytes) {
  check_aligned(to, bytes, "cp.async");
  check_aligned(from, bytes, "cp.async");
  if (doing.schedule.early_copies) {
    land({to, from, read, bytes});
  } else {
    doing.fiber->open.push_back({to, from, read, bytes});
  }
}

void commit_copies() { doing.fiber->groups.push_back(std::exchange(doing.fiber->open, {})); }

void wait_for_copies(size_t pending) {
  auto& groups = doing.fiber->groups;
  while (groups.size() > pending) {
    for (const Copy& copy : groups.front()) land(copy);
    groups.erase(groups.begin());
  }
}

void begin_work(void (*run)(void*), void* context) {
  need_whole_warp("wgmma");
  if (doing.schedule.early_copies) {
    run(context);
  } else {
    doing.fiber->begun.push_back({run, context});
  }
}

void commit_work() { doing.fiber->working.push_back(std::exchange(doing.fiber->begun, {})); }

void wait_for_work(size_t pending) {
  auto& working = doing.fiber->working;
  while (working.size() > pending) {
    for (const Work& work : working.front()) work.run(work.context);
    working.erase(working.begin());
  }
  // As the instruction does, which is of a whole warp.
  const int nothing = 0;
  exchange(~0u, &nothing, sizeof nothing, "wgmma.wait_group");
}

void mbarrier_init(unsigned long long* barrier, int arrivals) {
  of(barrier) = {(unsigned short)arrivals, 1, (short)arrivals, 0};
}

void mbarrier_arrive(unsigned long long* barrier, int bytes) {
  Mbarrier& here = of(barrier);
  if (here.missing < 1) fail("mbarrier.arrive: more arrivals than the %d that a phase expects", here.expected);
  const auto waits = [=](const Fiber& fiber) { return !fiber.done && fiber.waits_for == barrier; };
  const auto waited_for = [&](const Block& block) { return std::ranges::any_of(block.fibers, waits); };
  if (!here.awaited && std::ranges::none_of(doing.cluster->blocks, waited_for)) {
    fail("mbarrier.arrive: nobody has waited for the phase before");
  }
  --here.missing;
  here.bytes_and_parity += 2 * bytes;
  here.advance();
}

void mbarrier_wait(unsigned long long* barrier, unsigned parity) {
  Fiber& me = *doing.fiber;
  me.waits_for = barrier;
  me.parity = parity;
  me.waits_in = "mbarrier.try_wait";
  switch_context(me.context, *me.scheduler);
  of(barrier).awaited = 1;
}

// Lands at once, or when nothing else can go on.
void under_way(const Landing& landing) {
  if (doing.schedule.early_copies) {
    landing.land();
  } else {
    doing.cluster->under_way.push_back(landing);
  }
}

void bulk_copy(void* to, const void* from, size_t bytes, unsigned long long* barrier) {
  check_aligned(to, 16, "cp.async.bulk");
  check_aligned(from, 16, "cp.async.bulk");
  if (bytes % 16) fail("cp.async.bulk of %zu bytes, which is no multiple of 16", bytes);
  under_way({{{to, from, bytes, bytes}}, barrier, (int)bytes, 0, doing.block});
}

void arrive_with_copies(unsigned long long* barrier) {
  commit_copies();
  Landing landing{{}, barrier, 0, 1, doing.block};
  for (const auto& group : std::exchange(doing.fiber->groups, {})) {
    landing.copies.insert(landing.copies.end(), group.begin(), group.end());
  }
  under_way(landing);
}

// --- Clusters and tensor copies -------------------------------------------------------------------------------------

unsigned cluster_rank() { return doing.block->rank; }

void wait_for_cluster() { wait(*doing.fiber, doing.cluster->barrier, "barrier.cluster"); }

void* in_block(const void* shared, unsigned rank) {
  const ptrdiff_t offset = static_cast<const unsigned char*>(shared) - doing.block->shared;
  return doing.cluster->blocks.at(rank).shared + offset;
}

void arrive_in_block(unsigned long long* barrier, unsigned rank) {
  if (doing.cluster->blocks.at(rank).has_ended()) fail("mbarrier.arrive in a block that has ended");
  mbarrier_arrive(static_cast<unsigned long long*>(in_block(barrier, rank)), 0);
}

namespace {

// A tensor map of HostMachine: a row-major matrix, and the box that a copy moves.
struct TensorMap {
  unsigned long long address;
  long long columns, rows, row_bytes, box_columns, box_rows, item_bytes;
};

// The 16-byte pieces of the box whose first element is in column x and row y: calls take(piece in shared memory, piece
// in global memory, number of its bytes that the matrix has).
template <typename Take>
void for_each_piece(const void* shared, const unsigned long long* map, int x, int y, Take take) {
  TensorMap of;
  memcpy(&of, map, sizeof of);
  check_aligned(shared, 1024, "cp.async.bulk.tensor");
  const long long row_bytes = of.box_columns * of.item_bytes;
  if (row_bytes != 128 && row_bytes != 64) fail("a box with rows of %lld bytes", row_bytes);
  const uintptr_t first = reinterpret_cast<uintptr_t>(shared), mask = row_bytes / 16 - 1;
  for (long long row = 0; row < of.box_rows; ++row) {
    for (int piece = 0; piece < row_bytes / 16; ++piece) {
      const uintptr_t at = first + row_bytes * row + 16 * piece, swizzled = at ^ (at >> 7 & mask) << 4;
      const long long begin = x * of.item_bytes + 16 * piece, left = of.columns * of.item_bytes - begin;
      const bool is_inside = y + row >= 0 && y + row < of.rows && begin >= 0;
      const size_t bytes = is_inside ? std::clamp(left, 0LL, 16LL) : 0;
      const uintptr_t global = of.address + (bytes ? (y + row) * of.row_bytes + begin : 0);
      take(reinterpret_cast<void*>(swizzled), reinterpret_cast<void*>(global), bytes);
    }
  }
}

}  // namespace

void tensor_load(void* shared, const unsigned long long* map, int x, int y, unsigned long long* barrier, unsigned ranks) {
  for (unsigned rank = 0; rank < doing.cluster->blocks.size(); ++rank) {
    if (!(ranks >> rank & 1)) continue;
    const Block& block = doing.cluster->blocks[rank];
    if (block.has_ended()) fail("cp.async.bulk.tensor to a block that has ended");
    Landing landing{{}, static_cast<unsigned long long*>(in_block(barrier, rank)), 0, 0, &block};
    for_each_piece(in_block(shared, rank), map, x, y, [&](void* to, const void* from, size_t bytes) {
      landing.copies.push_back({to, from, bytes, 16});
      landing.announced += 16;
    });
    under_way(landing);
  }
}

void tensor_store(const unsigned long long* map, int x, int y, const void* shared) {
  for_each_piece(shared, map, x, y, [](const void* from, void* to, size_t bytes) {
    if (!bytes) return;
    if (doing.schedule.early_copies) memcpy(to, from, bytes);
    else doing.fiber->stores.push_back({to, from, bytes, bytes});
  });
}

void commit_stores() { doing.fiber->store_groups.push_back(std::exchange(doing.fiber->stores, {})); }

void wait_for_stores(size_t pending) {
  auto& groups = doing.fiber->store_groups;
  while (groups.size() > pending) {
    for (const Copy& copy : groups.front()) land(copy);
    groups.erase(groups.begin());
  }
}

}  // namespace cuda_host

// Returns the message of the first error since the last call, or null. For one caller at a time.
extern "C" const char* cuda_host_take_error() {
  static std::string taken;
  taken = std::exchange(cuda_host::pending_error, {});
  return taken.empty() ? nullptr : taken.c_str();
}
