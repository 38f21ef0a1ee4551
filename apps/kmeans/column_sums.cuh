// The integer sums of few features (integers.cuh) in shared memory, where the lanes of a warp take columns of some rows in turns.
//
//   a row      a lane v has columns 4·v … 4·v + 3, as one vector: kLanes lanes, the power of two that has room for the row;
//              32 / kLanes rows at a time
//   a turn     lane v of row q adds column 4·v + (turn ^ q % 4): of four rows, 4 · kLanes sums that lie apart
//
//   sums of a cluster           word 0 … 31                               of 16 columns, two replicas; of 64, twice the words
//     numbers, high digits      column 4·v + e at e · kLanes + v          (of 32 columns: 0, 4, 8 … 28, 1, 5 …)
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
// none, side by side in a register.
class alignas(8) Moving {
 public:
  Moving() = default;
  __device__ __forceinline__ Moving(unsigned row, int from, int to) : row_(row), places_((int)((unsigned)from << 16 | (unsigned)to)) {}

  __device__ __forceinline__ unsigned row() const { return row_; }
  __device__ __forceinline__ int from() const { return places_ >> 16; }
  __device__ __forceinline__ int to() const { return places_ & 0xffff; }

 private:
  unsigned row_;
  int places_;
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
        const int all = take<kGoesOn>(from + replica), high = take<kGoesOn>(from + replica + kPlane);
        sum += (int)((unsigned)all - ((unsigned)high << 16)) + (long long)high * 65536;
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
      load_some<kFeatures, kWidth == kFeatures ? Past::kNone : Past::kAny>(row, swizzle, column, at_);
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
    unsigned* const digits = reinterpret_cast<unsigned*>(shared + columns) + 2 * kWidth;
    const int lane = threadIdx.x % 32, v = lane % kLanes, q = lane / kLanes;
    float2 of_column[4];
    ptx::SharedWord of_turn[4];
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const int turned = s ^ q % 4;
      of_column[s] = reinterpret_cast<const float2*>(shared + columns)[4 * v + turned];
      of_turn[s] = ptx::SharedWord(digits + q / 4 * kWidth % 32 + turned * kLanes + v);
    }
    const auto load = [&](unsigned row) {
      Turns x;
      x.load(kOfX ? reinterpret_cast<const unsigned char*>(X + (long long)row * kFeatures)
                  : shared + tile + row * (kFeatures * (int)sizeof(T)),
             Ring::swizzle(row), 4 * v);
      return x;
    };
    const auto add_row = [&](const Turns& x, const Moving& one) {
      int numbers[4];
      x.to_integers(q, of_column, numbers);
      add(of_turn, one.to(), numbers, 1);
      if (one.from() >= 0) add(of_turn, one.from(), numbers, -1);
    };
    const auto item = [&](int i) { return rows[i < count ? i : 0]; };
    if constexpr (kOfX && kTogether < 16) {
      // Of rows that come from far several are on their way.
      constexpr int kAtOnce = 8 / (int)sizeof(T);
#pragma unroll 1
      for (int i = q; i < count; i += kAtOnce * kTogether) {
        Turns x[kAtOnce];
#pragma unroll
        for (int r = 0; r < kAtOnce; ++r) x[r] = load(item(i + r * kTogether).row());
#pragma unroll
        for (int r = 0; r < kAtOnce; ++r) {
          if (i + r * kTogether >= count) break;
          add_row(x[r], rows[i + r * kTogether]);
        }
      }
    } else {
      Moving now = item(q), soon = item(q + kTogether);
      Turns x = load(now.row());
#pragma unroll 1
      for (int i = q; i < count; i += kTogether) {
        const Turns next = load(soon.row());
        const Moving later = item(i + 2 * kTogether);
        add_row(x, now);
        x = next, now = soon, soon = later;
      }
    }
    if (lane >= count) return;
    const ptx::SharedWord of_rows(digits + 2 * kPlane + lane);
    (of_rows + rows[lane].to()).template add<0>(1u);
    if (rows[lane].from() >= 0) (of_rows + rows[lane].from()).template add<0>(~0u);
  }

  template <bool kGoesOn>
  __device__ static __forceinline__ int take(unsigned* from) {
    const int word = (int)*from;
    if (kGoesOn) *from = 0;
    return word;
  }

  // The lower word has all of a number, modulo 2³², and the higher one its upper digit: what the lower digits add up to is the
  // difference.
  __device__ static __forceinline__ void add(const ptx::SharedWord (&of_turn)[4], int place, const int (&numbers)[4], int sign) {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const ptx::SharedWord to = of_turn[s] + place;
      to.template add<0>((unsigned)(sign * numbers[s]));
      to.template add<kPlane>((unsigned)(sign * (numbers[s] >> 16)));
    }
  }

  unsigned long long* sums_;
  float2* columns_;
  unsigned* digits_;
  const int k_;
};

}  // namespace kmeans
