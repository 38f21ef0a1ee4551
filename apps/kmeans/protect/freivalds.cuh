// Freivalds check: verifies the running cluster sums (update/fixed_point.cuh) against X and the labels with one random
// projection. Recomputing the sums would sort all rows.
//
//   Σ r[c] · s[j] · sums[c, j]  over clusters c and columns j
//       =  Σ r[label of i] · Σ s[j] · element [i, j]  over rows i
//
// r (k) and s (d + 1) are random: distinct values in 1 … 2³¹ − 1, and values in ±1 … ±(2³¹ − 1) (Freivalds,
// "Probabilistic machines can use less running time", IFIP Congress 1977). Both sides are exact modulo 2¹²⁸. Modulo
// 2⁶⁴, elements with many trailing zeros (16-bit types, whole numbers) would leave few bits to differ in. A value in
// the sums of cluster b instead of a makes them differ by
//
//   (r[a] − r[b]) · s[j] · e           one column's sum e: never zero
//   (r[a] − r[b]) · Σ s[j] · e[j]      several columns, as of rows: zero for one s[j] of 2³² − 2
//
// An error in more clusters escapes with a probability below 2⁻³⁰.
//
// Why it is fast: it shares the read of X with the inertia (inertia/inertia.cuh). Each element is converted and
// multiplied once. Partial sums of a row are multiplied by r together.
#pragma once
#include "apps/kmeans/update/fixed_point.cuh"

namespace kmeans {

// Running sums, random factors, and the difference found. Mirrored on the host, byte for byte.
template <int kDigits>
struct RunningSums {
  const unsigned long long* sums;
  const typename Integer<kDigits>::Scale* scales;  // of the columns
  const int *of_clusters, *of_columns;             // r, s
  // 1 if any label is none. Then the rows' side less the sums' side in words of 32 bits with carries pending: four
  // words per part of an element.
  unsigned long long* found;
};

// An integer modulo 2¹²⁸.
struct Exact {
  unsigned long long low, high;

  __device__ __forceinline__ void add(unsigned long long other_low, unsigned long long other_high) {
    low += other_low;
    high += other_high + (low < other_low);
  }
  // `times` is positive.
  __device__ __forceinline__ void add_product(long long value, int times) {
    const unsigned long long below = (unsigned long long)(unsigned)value * (unsigned)times;
    const long long above = (long long)(int)(value >> 32) * times + (long long)(below >> 32);
    add((unsigned)below | (unsigned long long)above << 32, (unsigned long long)(above >> 32));
  }
};

// Adds a thread's rows and its share of the sums to the difference; empty without running sums.
template <typename Work, typename... Kept>
struct Difference {
  struct Columns {};
  struct Row {
    __device__ __forceinline__ void add(Work, Columns, int) const {}
    __device__ __forceinline__ void add_weight(Work, Columns) const {}
  };
  __device__ __forceinline__ Difference(int, int) {}
  __device__ __forceinline__ int readable(int label) const { return label; }
  __device__ __forceinline__ int weight_of(int) const { return 0; }
  template <int kVector>
  __device__ __forceinline__ Columns columns(int) const {
    return {};
  }
  __device__ __forceinline__ Row row() const { return {}; }
  __device__ __forceinline__ void add(Row, int) const {}
  __device__ __forceinline__ void tell() const {}
};

template <typename Work, int kDigits>
class Difference<Work, RunningSums<kDigits>> {
 public:
  using Scale = typename Integer<kDigits>::Scale;
  // An element of three limbs has two parts: its last 24 bits and the rest. The products of four then add up within 64
  // bits.
  static constexpr int kNumbers = kDigits - 1, kLastBits = 24;

  // Per-column data: s and the scales; those of the weights go with column 0.
  template <int kVector>
  struct Columns {
    simt::Vector<Scale, kVector> scale;
    simt::Vector<int, kVector> weight;
    Scale scale_of_weight;
    int weight_of_weight;
  };

  // Σ s · element of some columns of a row.
  struct Row {
    long long sums[kNumbers] = {};

    template <int kVector>
    __device__ __forceinline__ void add(Work value, const Columns<kVector>& columns, int i) {
      add(value, columns.scale.at[i], columns.weight.at[i]);
    }
    template <int kVector>
    __device__ __forceinline__ void add_weight(Work value, const Columns<kVector>& columns) {
      add(value, columns.scale_of_weight, columns.weight_of_weight);
    }

   private:
    __device__ __forceinline__ void add(Work value, Scale scale, int weight) {
      const auto element = as_integer<Work>(value, scale);
      if constexpr (kNumbers == 1) {
        sums[0] += (long long)element * weight;
      } else {
        sums[0] += (long long)((int)element & ((1 << kLastBits) - 1)) * weight;
        sums[1] += (long long)(int)(element >> kLastBits) * weight;
      }
    }
  };

  __device__ __forceinline__ Difference(int k, int d, const RunningSums<kDigits>& kept) : kept_(kept), k_(k), d_(d) {
    // One warp a cluster.
    const int warps = blockDim.x / 32, first = (int)blockIdx.x * warps + (int)threadIdx.x / 32;
    for (long long cluster = first; cluster < k; cluster += (long long)gridDim.x * warps) {
      const int of_cluster = kept.of_clusters[cluster];
#pragma unroll 2
      for (int column = simt::lane(); column <= d; column += 32) {
        const int of_column = kept.of_columns[column];
        const long long sum = (long long)kept.sums[cluster * (d + 1) + column];
        Exact above = {};
        above.add_product((sum >> 32) * -of_column, of_cluster);
        sums_[0].add_product((long long)(unsigned)sum * -of_column, of_cluster);
        sums_[0].add(above.low << 32, above.high << 32 | above.low >> 32);
      }
    }
  }

  // Returns a label that is safe as an index; reports one that is none.
  __device__ __forceinline__ int readable(int label) const {
    if ((unsigned)label < (unsigned)k_) return label;
    kept_.found[0] = 1;
    return 0;
  }
  __device__ __forceinline__ int weight_of(int label) const { return kept_.of_clusters[label]; }

  template <int kVector>
  __device__ __forceinline__ Columns<kVector> columns(int first) const {
    const int of_weight = kept_.of_columns[d_];
    return {*reinterpret_cast<const simt::Vector<Scale, kVector>*>(kept_.scales + first),
            *reinterpret_cast<const simt::Vector<int, kVector>*>(kept_.of_columns + first), kept_.scales[d_],
            first == 0 ? of_weight : 0};
  }

  __device__ __forceinline__ Row row() const { return {}; }
  __device__ __forceinline__ void add(const Row& row, int weight) {
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) sums_[i].add_product(row.sums[i], weight);
  }

  // Adds the warp's difference to `found`, by all lanes.
  __device__ __forceinline__ void tell() const {
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) {
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const unsigned long long half = word < 2 ? sums_[i].low : sums_[i].high;
        const unsigned long long sum = simt::warp_sum(half >> word % 2 * 32 & 0xffffffffu);
        if (simt::lane() == 0) atomicAdd(&kept_.found[1 + 4 * i + word], sum);
      }
    }
  }

 private:
  const RunningSums<kDigits>& kept_;
  const int k_, d_;
  Exact sums_[kNumbers] = {};
};

}  // namespace kmeans
