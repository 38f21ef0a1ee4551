// The integer sums of few features (integers.cuh) in shared memory, where the lanes of a warp take columns of some rows in turns.
//
//   a row      a lane v has columns 4·v … 4·v + 3, as one vector: kLanes lanes, the power of two that has room for the row;
//              32 / kLanes rows at a time
//   a turn     lane v of row q adds column 4·v + (turn ^ q % 4): of four rows, 4 · kLanes sums that lie apart
//
//   sums of a cluster           word 0 … 31                               of 16 columns, two replicas; of 64, twice the words
//     low digits, high digits   column 4·v + e at e · kLanes + v          (of 32 columns: 0, 4, 8 … 28, 1, 5 …)
//     rows                      by whichever lane adds the row
//
// Why it is fast: what the lanes of a warp add to lies in as many banks, whatever clusters their rows are of, though a
// cluster's sums are there once or twice: 64 clusters of 32 features take 24 KiB. Rows are read where their tile lies in shared
// memory, a lane's four columns by one instruction, and where a row's sums are is found once for all four. Nothing that is
// added is waited for.
#pragma once
#include "apps/kmeans/few_rows.cuh"

namespace kmeans {

// A row that goes from one cluster to another: of its tile, or of X; and where the clusters' sums begin, negative if there are
// none.
struct alignas(8) Moving {
  unsigned row;
  short from, to;
};

template <typename T, int kFeatures>
class ColumnSums {
 public:
  static constexpr int kLanes = few_lanes<kFeatures>(), kWidth = 4 * kLanes, kTogether = 32 / kLanes;
  static_assert(kLanes <= 32, "a row is a warp's at most");
  static constexpr int kPlane = kWidth < 32 ? 32 : kWidth, kWords = 2 * kPlane + 32;  // of a digit; of a cluster
  // Of `k` clusters, in shared memory, and of the columns' means and scales.
  __host__ __device__ static constexpr int bytes(int k) { return 4 * k * kWords + 8 * kWidth; }

  __device__ ColumnSums(unsigned long long* sums, void* shared, int clusters, int k, const float* mean, const float* scales)
      : sums_(sums), columns_(static_cast<float2*>(shared)), digits_(reinterpret_cast<unsigned*>(columns_ + kWidth)), k_(k) {
    // Past the last column there is nothing to add.
    // By the last threads, as the first may be at other things.
    for (int i = (int)(blockDim.x - 1 - threadIdx.x); i < kWidth; i += blockDim.x) {
      columns_[i] = i < kFeatures ? float2{-mean[i] * scales[i], scales[i]} : float2{0, 0};
    }
    static_assert(kWords % 4 == 0 && kWidth % 2 == 0, "sums are whole vectors");
    for (int i = threadIdx.x; i < clusters * kWords / 4; i += blockDim.x) reinterpret_cast<uint4*>(digits_)[i] = {0, 0, 0, 0};
  }

  // Where the sums of a cluster begin; negative if it is none.
  __device__ static __forceinline__ int place(int cluster) { return cluster * kWords; }

  // Adds rows of X to one cluster and subtracts them from another; by a warp, 32 rows at most.
  __device__ __forceinline__ void move(const T* X, const Moving* rows, int count) const {
    move_rows<Everywhere, true>(X, 0, shared_place(rows), count, shared_place(columns_));
  }

  // The same of rows of the tile that a ring has waited for.
  template <typename Ring>
  __device__ __forceinline__ void move(const Ring& ring, const Moving* rows, int count) const {
    move_rows<Ring, false>(nullptr, shared_place(ring.row(0)), shared_place(rows), count, shared_place(columns_));
  }

  // To global memory, and zero again if it goes on; with all threads of the block.
  template <bool kGoesOn = true>
  __device__ __forceinline__ void flush() const {
    __syncthreads();
#pragma unroll 4
    for (int i = threadIdx.x; i < k_ * kWidth; i += blockDim.x) {
      const int cluster = i / kWidth, column = i % kWidth;
      if (column >= kFeatures) continue;
      unsigned* from = digits_ + place(cluster) + column % 4 * kLanes + column / 4;
      long long sum = 0;
#pragma unroll
      for (int replica = 0; replica < kPlane; replica += kWidth) {
        sum += take<kGoesOn>(from + replica) + (long long)take<kGoesOn>(from + replica + kPlane) * 65536;
      }
      if (sum != 0) atomicAdd(&sums_[cluster * (kFeatures + 1) + column], (unsigned long long)sum);
    }
#pragma unroll 4
    for (int cluster = threadIdx.x / 32; cluster < k_; cluster += blockDim.x / 32) {
      const int lane = threadIdx.x % 32, rows = simt::warp_sum(take<kGoesOn>(digits_ + place(cluster) + 2 * kPlane + lane));
      if (lane == 0 && rows != 0) atomicAdd(&sums_[cluster * (kFeatures + 1) + kFeatures], (unsigned long long)(long long)rows);
    }
    if (kGoesOn) __syncthreads();
  }

 private:
  // Rows of X, in place of a ring's.
  struct Everywhere {
    __device__ static __forceinline__ int swizzle(unsigned) { return 0; }
  };

  // A lane's four columns of a row, in the order of its turns.
  class Turns {
   public:
    __device__ __forceinline__ void load(const unsigned char* row, int swizzle, int column) {
      load_four<kFeatures, kWidth == kFeatures ? Past::kNone : Past::kAny>(row, swizzle, column, at_);
    }

    // As integers; of the columns' means and scales, `of_column` has those of the turns of row q.
    __device__ __forceinline__ void to_integers(int q, const float2 (&of_column)[4], int (&numbers)[4]) const {
      float x[4];
      if constexpr (sizeof(T) == 2) {
        unsigned pairs[2] = {word_of(at_[0], at_[1]), word_of(at_[2], at_[3])};
        if (kTogether > 1) {
#pragma unroll
          for (int i = 0; i < 2; ++i) pairs[i] = __byte_perm(pairs[i], 0, q % 2 ? 0x1032 : 0x3210);
        }
        if (kTogether > 2 && q / 2 % 2) exchange(pairs[0], pairs[1]);
#pragma unroll
        for (int s = 0; s < 4; ++s) x[s] = tsm2::Element<T>::value(T{(unsigned short)(pairs[s / 2] >> s % 2 * 16)});
      } else {
#pragma unroll
        for (int s = 0; s < 4; ++s) x[s] = at_[s];
        if (kTogether > 1 && q % 2) exchange(x[0], x[1]), exchange(x[2], x[3]);
        if (kTogether > 2 && q / 2 % 2) exchange(x[0], x[2]), exchange(x[1], x[3]);
      }
      // as_integer of x − mean, to the bit: the scale is a power of two.
#pragma unroll
      for (int s = 0; s < 4; ++s) numbers[s] = __float2int_rn(fmaf(x[s], of_column[s].y, of_column[s].x));
    }

   private:
    template <typename Any>
    __device__ static __forceinline__ void exchange(Any& a, Any& b) {
      const Any other = a;
      a = b, b = other;
    }

    T at_[4];
  };

  // A call of its own, so that what it takes of registers is not what the loop of tiles goes without.
  template <typename Ring, bool kOfX>
  __device__ __noinline__ static void move_rows(const T* X, int tile, int items, int count, int columns) {
    unsigned char* const shared = simt::dynamic_shared<unsigned char>();
    const auto* rows = reinterpret_cast<const Moving*>(shared + items);
    // Of rows that come from far more are on their way.
    constexpr int kAtOnce = kOfX && kTogether < 16 ? 8 / (int)sizeof(T) : 1;
    const int lane = threadIdx.x % 32, v = lane % kLanes, q = lane / kLanes;
    float2 of_column[4];
    unsigned* of_turn[4];
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const int turned = s ^ q % 4;
      of_column[s] = reinterpret_cast<const float2*>(shared + columns)[4 * v + turned];
      of_turn[s] = reinterpret_cast<unsigned*>(shared + columns) + 2 * kWidth + q / 4 * kWidth % 32 + turned * kLanes + v;
    }
#pragma unroll 1
    for (int i = q; i < count; i += kAtOnce * kTogether) {
      Turns x[kAtOnce];
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
        const unsigned row = rows[kAtOnce == 1 || i + r * kTogether < count ? i + r * kTogether : i].row;
        x[r].load(kOfX ? reinterpret_cast<const unsigned char*>(X + (long long)row * kFeatures)
                       : shared + tile + row * (kFeatures * (int)sizeof(T)),
                  Ring::swizzle(row), 4 * v);
      }
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
        if (kAtOnce > 1 && i + r * kTogether >= count) break;
        const int from = rows[i + r * kTogether].from, to = rows[i + r * kTogether].to;
        int numbers[4];
        x[r].to_integers(q, of_column, numbers);
        add(of_turn, to, numbers, 1);
        if (from >= 0) add(of_turn, from, numbers, -1);
      }
    }
    if (lane >= count) return;
    unsigned* of_rows = reinterpret_cast<unsigned*>(shared + columns) + 2 * kWidth + 2 * kPlane + lane;
    atomicAdd(of_rows + rows[lane].to, 1u);
    if (rows[lane].from >= 0) atomicAdd(of_rows + rows[lane].from, ~0u);
  }

  template <bool kGoesOn>
  __device__ static __forceinline__ int take(unsigned* from) {
    const int digit = (int)*from;
    if (kGoesOn) *from = 0;
    return digit;
  }

  __device__ static __forceinline__ void add(unsigned* const (&of_turn)[4], int place, const int (&numbers)[4], int sign) {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      atomicAdd(of_turn[s] + place, (unsigned)(sign * (numbers[s] & 0xffff)));
      atomicAdd(of_turn[s] + place + kPlane, (unsigned)(sign * (numbers[s] >> 16)));
    }
  }

  unsigned long long* sums_;
  float2* columns_;
  unsigned* digits_;
  const int k_;
};

}  // namespace kmeans
