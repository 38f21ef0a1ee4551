// Fixed-point cluster sums for small d (update/fixed_point.cuh) in shared memory, without bank conflicts: the lanes of
// a warp add the columns of several rows in permuted order.
//
//   a row      split among kLanes lanes, a power of two; lane v loads columns 4·v … 4·v + 3 as one vector; a warp adds
//              32 / kLanes rows at a time
//   a turn     one of four additions of a lane: in turn s, lane v of row q adds column 4·v + (s ^ q % 4); so the lanes
//              of four rows add to 4 · kLanes different banks
//
//   sums of a cluster           word 0 … 31                             16 columns: two replicas; 64: twice the words
//     numbers, high limbs       column 4·v + e at e · kLanes + v        (32 columns: 0, 4, 8 … 28, 1, 5 …)
//     rows                      one row count per lane of the warp
//
// Why it is fast: the lanes of a warp add to different banks, whatever clusters the rows have. This needs only one
// or two replicas of a cluster's sums: 64 clusters of 32 features take 24 KiB. A lane reads four columns from the
// tile in shared memory with one instruction, and computes one address for the sums of these columns. No atomic
// addition returns a value.
#pragma once
#include "apps/kmeans/small_d/rescore.cuh"
#include "kernels/ptx/memory.cuh"

namespace kmeans {

// A reassigned row: its index in its tile or in X, and the clusters that it leaves and joins. The clusters are given by
// the byte offsets of their sums, in one register; kNowhere means no cluster.
class alignas(8) Moving {
 public:
  static constexpr unsigned kNowhere = 0xffff;

  Moving() = default;
  __device__ __forceinline__ Moving(unsigned row, unsigned from, unsigned to) : row_(row), places_(from << 16 | to) {}

  __device__ __forceinline__ unsigned row() const { return row_; }
  __device__ __forceinline__ bool leaves() const { return places_ < kNowhere << 16; }
  __device__ __forceinline__ unsigned from() const { return places_ >> 16; }
  __device__ __forceinline__ unsigned to() const { return places_ & 0xffff; }

 private:
  unsigned row_, places_;
};

// The cluster sums of a block in shared memory (head of this file).
template <typename T, int kFeatures>
class ColumnSums {
 public:
  static constexpr int kLanes = row_lanes<kFeatures>(), kWidth = 4 * kLanes, kTogether = 32 / kLanes;
  static_assert(kLanes <= 32, "a row is a warp's at most");
  // A cluster has two planes of words, for numbers and for their high limbs. kPlane: number of words per plane, at
  // least one per column. kWords: number of words per cluster, for two planes and 32 row counts.
  static constexpr int kPlane = kWidth < 32 ? 32 : kWidth, kWords = 2 * kPlane + 32;
  // Returns the size of the sums of `k` clusters and of the per-lane tables in bytes of shared memory.
  __host__ __device__ static constexpr int bytes(int k) { return 4 * k * kWords + 32 * (int)sizeof(OfLane); }

  __device__ ColumnSums(unsigned long long* sums, void* shared, int clusters, int k, const float* mean,
                        const float* scales)
      : sums_(sums), lanes_(static_cast<Vector4*>(shared)), words_(reinterpret_cast<unsigned*>(lanes_ + 3 * 32)),
        k_(k) {
    // The last warp fills the per-lane tables, since the first warp may have other work.
    const int lane = (int)(blockDim.x - 1 - threadIdx.x), v = lane % kLanes, q = lane / kLanes;
    if (lane < 32) {
      OfLane of;
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        const int turned = s ^ q % 4, column = 4 * v + turned;
        // A scale of zero makes columns past the last one add zero.
        of.scales[s] = column < kFeatures ? scales[column] : 0.0f;
        of.shifts[s] = column < kFeatures ? -mean[column] * scales[column] : 0.0f;
        of.places[s] = 4u * (q / 4 * kWidth % 32 + turned * kLanes + v);
      }
      of.store(lanes_, lane);
    }
    static_assert(kWords % 4 == 0, "sums are whole vectors");
    for (int i = threadIdx.x; i < clusters * kWords / 4; i += blockDim.x)
      reinterpret_cast<uint4*>(words_)[i] = {0, 0, 0, 0};
  }

  // Returns the byte offset of a cluster's sums; kNowhere if `cluster` is negative (no cluster).
  __device__ static __forceinline__ unsigned place(int cluster) {
    static_assert(4 * 64 * kWords <= (int)Moving::kNowhere, "a place of 64 clusters is 16 bits");
    return cluster < 0 ? Moving::kNowhere : 4 * kWords * (unsigned)cluster;
  }

  // Adds reassigned rows of X to the sums of the clusters that they join, and subtracts them from the sums of the
  // clusters that they leave. A warp processes at most 32 rows in a call.
  __device__ __forceinline__ void move(const T* X, const Moving* rows, int count) const {
    move_rows<Everywhere, true>(X, 0, shared_place(rows), count, shared_place(lanes_));
  }

  // Does the same for rows of the current tile of a pipeline.
  template <typename Pipeline>
  __device__ __forceinline__ void move(const Pipeline& pipeline, const Moving* rows, int count) const {
    move_rows<Pipeline, false>(nullptr, shared_place(pipeline.row(0)), shared_place(rows), count, shared_place(lanes_));
  }

  // Adds the sums to those in global memory. If kGoesOn, clears the sums in shared memory. All threads of the block
  // take part.
  template <bool kGoesOn = true>
  __device__ __forceinline__ void flush() const {
    __syncthreads();
#pragma unroll 4
    for (int i = threadIdx.x; i < k_ * kWidth; i += blockDim.x) {
      const int cluster = i / kWidth, column = i % kWidth;
      if (column >= kFeatures) continue;
      unsigned* from = words_ + cluster * kWords + column % 4 * kLanes + column / 4;
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
      const int lane = threadIdx.x % 32,
                rows = simt::warp_sum(take<kGoesOn>(words_ + cluster * kWords + 2 * kPlane + lane));
      if (lane == 0 && rows != 0)
        atomicAdd(&sums_[cluster * (kFeatures + 1) + kFeatures], (unsigned long long)(long long)rows);
    }
    if (kGoesOn) __syncthreads();
  }

 private:
  // The type argument instead of a pipeline if rows are read from X, which is not swizzled.
  struct Everywhere {
    __device__ static __forceinline__ int swizzle(unsigned) { return 0; }
  };

  using Vector4 = simt::Vector<float, 4>;

  // The scale and shift of a lane's column in each of its four turns, and the byte offset of the column in the sums of
  // a cluster. They are computed once per block, because computing them costs as much as adding a few rows.
  struct OfLane {
    float scales[4], shifts[4];
    unsigned places[4];

    __device__ __forceinline__ void store(Vector4* to, int lane) const {
      to[lane] = simt::bits_of<Vector4>(scales);
      to[32 + lane] = simt::bits_of<Vector4>(shifts);
      to[64 + lane] = simt::bits_of<Vector4>(places);
    }
    __device__ __forceinline__ void load(const Vector4* from, int lane) {
      const Vector4 parts[3] = {from[lane], from[32 + lane], from[64 + lane]};
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        scales[s] = parts[0].at[s];
        shifts[s] = parts[1].at[s];
        places[s] = __float_as_uint(parts[2].at[s]);
      }
    }
  };

  // A lane's four columns of a row, in the order of its turns.
  class Turns {
   public:
    __device__ __forceinline__ void load(const unsigned char* row, int swizzle, int column) {
      load_some<kFeatures, kWidth == kFeatures ? Past::kNone : Past::kAny>(row, swizzle, column, at_);
    }

    // Converts the four columns to fixed point, in the order of turns of row q (head of this file).
    __device__ __forceinline__ void to_integers(int q, const OfLane& of, int (&numbers)[4]) const {
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
      // The same bits as as_integer(x − mean), because the scale is a power of two.
#pragma unroll
      for (int s = 0; s < 4; ++s) numbers[s] = __float2int_rn(fmaf(x[s], of.scales[s], of.shifts[s]));
    }

   private:
    template <typename Any>
    __device__ static __forceinline__ void exchange(Any& a, Any& b) {
      const Any other = a;
      a = b, b = other;
    }

    T at_[4];
  };

  // Adds `count` reassigned rows, from X if kOfX, otherwise from a tile. The integer parameters are byte offsets in
  // dynamic shared memory. Not inlined, so that it does not increase the registers of the loop over tiles.
  template <typename Pipeline, bool kOfX>
  __device__ __noinline__ static void move_rows(const T* X, int tile, int items, int count, int lanes) {
    unsigned char* const shared = simt::dynamic_shared<unsigned char>();
    const auto* rows = reinterpret_cast<const Moving*>(shared + items);
    const auto* of_lanes = reinterpret_cast<const Vector4*>(shared + lanes);
    const int lane = threadIdx.x % 32, v = lane % kLanes, q = lane / kLanes;
    OfLane of;
    of.load(of_lanes, lane);
    const ptx::SharedWord words((unsigned*)(of_lanes + 3 * 32));
    ptx::SharedWord of_turn[4];
#pragma unroll
    for (int s = 0; s < 4; ++s) of_turn[s] = words + of.places[s];
    const auto load = [&](unsigned row) {
      Turns x;
      x.load(kOfX ? reinterpret_cast<const unsigned char*>(X + (long long)row * kFeatures)
                  : shared + tile + row * (kFeatures * (int)sizeof(T)),
             Pipeline::swizzle(row), 4 * v);
      return x;
    };
    const auto add_row = [&](const Turns& x, const Moving& one) {
      int numbers[4];
      x.to_integers(q, of, numbers);
      add(of_turn, one.to(), numbers, 1);
      if (one.leaves()) add(of_turn, one.from(), numbers, -1);
    };
    const auto item = [&](int i) { return rows[i < count ? i : 0]; };
    if constexpr (kOfX && kTogether < 16) {
      // Loads from global memory have a long latency, so a lane has kAtOnce rows in flight.
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
    const ptx::SharedWord of_rows = words + 4u * (2 * kPlane + lane);
    (of_rows + rows[lane].to()).template add<0>(1u);
    if (rows[lane].leaves()) (of_rows + rows[lane].from()).template add<0>(~0u);
  }

  template <bool kGoesOn>
  __device__ static __forceinline__ int take(unsigned* from) {
    const int word = (int)*from;
    if (kGoesOn) *from = 0;
    return word;
  }

  // Adds `sign` times the numbers of a row to the sums at offset `place`. The first plane sums the numbers modulo 2³²,
  // and the second plane sums their high limbs. The first sum minus 2¹⁶ times the second is the sum of the low limbs.
  __device__ static __forceinline__ void add(const ptx::SharedWord (&of_turn)[4], unsigned place,
                                             const int (&numbers)[4], int sign) {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const ptx::SharedWord to = of_turn[s] + place;
      to.template add<0>((unsigned)(sign * numbers[s]));
      to.template add<kPlane>((unsigned)(sign * (numbers[s] >> 16)));
    }
  }

  unsigned long long* sums_;
  Vector4* lanes_;  // one OfLane per lane
  unsigned* words_;
  const int k_;
};

}  // namespace kmeans
