// Freivalds check: verifies the running cluster sums (update/fixed_point.cuh) against X and the labels by one random
// projection. This is cheaper than recomputing the sums, which would need all rows sorted by label.
//
//   Σ r[c] · s[j] · sums[c, j]  over clusters c and columns j
//       =  Σ r[label of i] · Σ s[j] · element [i, j]  over rows i
//
// element [i, j] is the fixed-point value of w·x[i, j], and w in column d; w is the weight of row i. r (k) and
// s (d + 1) are random factors. The values of r are distinct and in 1 … 2³¹ − 1; the values of s are in ±1 … ±(2³¹ − 1)
// (Freivalds, "Probabilistic machines can use less running time", IFIP Congress 1977). Both sides are exact modulo
// 2¹²⁸. Modulo 2⁶⁴, they could differ in few bits if elements have many trailing zeros, as from 16-bit types or whole
// numbers. If an element e is in the sums of cluster b instead of cluster a, the two sides differ by
//
//   (r[a] − r[b]) · s[j] · e           e in one column j: never zero
//   (r[a] − r[b]) · Σ s[j] · e[j]      e in several columns, as from a whole row: zero for at most one of the 2³² − 2
//                                      values of each s[j]
//
// An error in more than two clusters escapes with a probability below 2⁻³⁰.
//
// Why it is fast: the pass that computes the inertia (inertia/inertia.cuh) reads X for both. Each element is converted
// and multiplied once. The products of a row are summed before they are multiplied by r.
#pragma once
#include "apps/kmeans/update/fixed_point.cuh"

namespace kmeans {

// Kernel argument: running sums, random factors, and the difference of the two sides. RUNNING_SUMS in inertia/plan.py
// is the same structure for NumPy.
template <int kDigits>
struct RunningSums {
  const unsigned long long* sums;                  // null if another launch, for other rows, subtracts their side
  const typename Integer<kDigits>::Scale* scales;  // fixed-point scale of each column
  const int *of_clusters, *of_columns;             // r, s
  // found[0] is 1 if a row has no valid label. The other words hold the rows' side minus the sums' side: four words for
  // each of the Difference::kNumbers parts of an element. A word is the sum of 32-bit digits of the difference; the
  // host propagates the carries.
  unsigned long long* found;
};

// An integer modulo 2¹²⁸.
struct Exact {
  unsigned long long low, high;

  __device__ __forceinline__ void add(unsigned long long other_low, unsigned long long other_high) {
    low += other_low;
    high += other_high + (low < other_low);
  }
  // Adds value · times; `times` must be positive.
  __device__ __forceinline__ void add_product(long long value, int times) {
    const unsigned long long below = (unsigned long long)(unsigned)value * (unsigned)times;
    const long long above = (long long)(int)(value >> 32) * times + (long long)(below >> 32);
    add((unsigned)below | (unsigned long long)above << 32, (unsigned long long)(above >> 32));
  }
};

// Accumulates one thread's contribution to the difference of the two sides: from its rows, and from a part of the sums.
// This primary template, without RunningSums, does nothing: it is for passes that compute only the inertia.
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
  // An element of two limbs has one part. An element of three limbs has two parts: its low 24 bits, and its other bits.
  // Sums of four products of parts then fit in 64 bits.
  static constexpr int kNumbers = kDigits - 1, kLastBits = 24;

  // Data of kVector columns: s (`weight`) and the fixed-point scales. The thread with column 0 also holds s and the
  // scale of column d, the sample weights; for others that s is 0.
  template <int kVector>
  struct Columns {
    simt::Vector<Scale, kVector> scale;
    simt::Vector<int, kVector> weight;
    Scale scale_of_weight;
    int weight_of_weight;
  };

  // Σ s · element over some columns of a row, separately for each part of the elements.
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
    if (kept.sums == nullptr) return;
    // Subtracts the sums' side; one warp processes one cluster at a time.
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

  // Returns the label if it is valid. Otherwise sets found[0], and returns 0, which is safe as an index.
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

  // Adds the differences of all lanes of a warp to `found`; all lanes must call it.
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
