// Bit-exact emulation of one output element: repeats the accumulation order and the rounding of the kernel of a plan
// (gemm_mma.cuh, which defines tile and work unit, or gemm_wgmma.cuh).
//
//   block         sums its work units of the tile in order; each of `splits` warps sums one part of every unit's depth
//   part          is a sequence of pairs of words; two words of four lanes are the depth of one instruction
//                 (operand.cuh)
//   instruction   float64: adds products one after another, each with one rounding; other types: ptx/emulated_mma.cuh
//   interval      `interval` words per lane, summed from zero; one rounded addition then adds the interval's sum to the
//                 sum of the warp. If `interval` is 0, all instructions add directly to the sum of the warp
//   reduction     add_splits gives the order in which the sums of the splits are added, stream_k_fixup.cuh the order in
//                 which the sums of the blocks are added
//
// One thread emulates one element, in about a hundred times the time that the kernel takes per element. So only a few
// elements should be emulated. Outer loops are not unrolled: with nested unrolled loops, inlined into every caller,
// compilation took more than a minute.
#pragma once
#include "kernels/ptx/emulated_mma.cuh"
#include "kernels/tsm2/fragments.cuh"
#include "kernels/ptx/types.cuh"

namespace tsm2 {

// The accumulation order of a launch (kernels/plan/accumulation_order.py). All members are numbers:
//
//   units, tile_units      work units of the product; work units per tile
//   tile_rows, depth, k    rows per tile; depth per work unit; k of the product
//   blocks                 blocks of the grid; 0 if the order is unknown
//   splits, stride         warps that split the depth; kStride of operand.cuh
//   interval, products     words per lane and interval; tf32 products per float32 product
struct Order {
  long long units, tile_units, tile_rows, depth, k;
  int blocks, splits, stride;
  // by_steps: if 1, an interval adds the first tf32 products of all its pairs of words, then all second products, and
  // so on. If 0, it adds all tf32 products of one pair of words before those of the next pair.
  int interval, products, by_steps;

  // Returns the first unit of a block's share, as Partition (tile_scheduler.cuh) does.
  __device__ long long begin(unsigned block) const {
    const long long each = units / blocks;
    const unsigned rest = (unsigned)(units - each * blocks);
    return block * each + block * rest / (unsigned)blocks;
  }
  __device__ int block_of(long long unit) const {
    int block = (int)((double)unit * blocks / units);
    while (begin(block) > unit) --block;
    while (begin(block + 1) <= unit) ++block;
    return block;
  }
};

__device__ __forceinline__ double unknown() { return __longlong_as_double(0x7ff8000000000000LL); }

// The range of magnitudes of nonzero factors that are emulated: at least least_factor, below most_factor. float16: all
// magnitudes. Other types: the range excludes factors whose products, or products of parts (fragments.cuh), could be
// subnormal or overflow.
template <typename T>
inline constexpr double least_factor = 0x1p-40;
template <>
inline constexpr double least_factor<double> = 0x1p-400;
template <>
inline constexpr double least_factor<ptx::Half> = 0x1p-24;
template <typename T>
inline constexpr double most_factor = sizeof(T) == 8 ? 0x1p400 : 0x1p40;
template <typename T>
inline constexpr int least_exponent = tensor::kLeastOfFloat;
template <>
inline constexpr int least_exponent<ptx::Half> = tensor::kLeastOfHalf;

// Emulates the element of A · B in row `row` and one column. `a(l)` returns element l of the row of A, and `b(l)`
// element l of the column of B, as doubles.
template <typename T, typename A, typename B>
class Predicted {
 public:
  __device__ Predicted(const Order& order, long long row, const A& a, const B& b)
      : order_(order), a_(a), b_(b), tile_(row / order.tile_rows * order.tile_units) {}

  // Returns the emulated element, or NaN if a factor is not finite or outside the range of least_factor and
  // most_factor.
  __device__ double sum() {
    first_ = order_.block_of(tile_);
    blocks_ = order_.block_of(tile_ + order_.tile_units - 1) - first_ + 1;
    const int groups = (blocks_ + kGroup - 1) / kGroup;
    const double found = blocks_ == 1  ? of_units(tile_, tile_ + order_.tile_units)
                         : groups == 1 ? of_group(0)
                                       : gathered(groups, [this](int group) { return of_group(group); });
    return is_known_ ? found : unknown();
  }

 private:
  static constexpr bool kDoubles = sizeof(T) == 8, kHalf = sizeof(T) == 2;
  static constexpr int kPerWord = kHalf ? 2 : 1, kPair = 8 * kPerWord;
  static constexpr int kGroup = 16, kMostSplits = 16;  // kGroup of StreamKFixup; maximum of `splits`

  // The elements of the row of A and of the column of B that two words of four lanes hold.
  template <typename Number>
  struct Pair {
    Number a[kPair], b[kPair];
  };

  static __device__ double add(double x, double y) { return kDoubles ? x + y : (float)(x + y); }

  // Reduces the sums of the splits: adds the upper half of the sums to the lower half until one sum is left.
  __device__ double halved(double (&sums)[kMostSplits]) const {
#pragma unroll 1
    for (int half = order_.splits / 2; half > 0; half /= 2) {
#pragma unroll 1
      for (int i = 0; i < half; ++i) sums[i] = add(sums[i], sums[i + half]);
    }
    return sums[0];
  }

  template <typename Of>
  __device__ double gathered(int count, Of of) {
    double sums[kMostSplits] = {};
#pragma unroll 1
    for (int i = 0; i < count; ++i) sums[i % order_.splits] = add(sums[i % order_.splits], of(i));
    return halved(sums);
  }

  __device__ double of_group(int group) {
    const int first = first_ + group * kGroup, left = blocks_ - group * kGroup;
    return gathered(left < kGroup ? left : kGroup, [this, first](int i) {
      const long long begin = order_.begin(first + i), end = order_.begin(first + i + 1),
                      last = tile_ + order_.tile_units;
      return of_units(begin > tile_ ? begin : tile_, end < last ? end : last);
    });
  }

  // The sum of units `begin` to `end` − 1 of the tile, as the warps of one block compute it.
  __device__ double of_units(long long begin, long long end) {
    double sums[kMostSplits] = {};
#pragma unroll 1
    for (int split = 0; split < order_.splits; ++split) sums[split] = of_split(split, begin, end);
    return halved(sums);
  }

  // Not inlined: the function is long and called rarely.
  __device__ __noinline__ double of_split(int split, long long begin, long long end) {
    const int part = (int)(order_.depth / order_.splits);
    const int total = (part + kPerWord - 1) / kPerWord, in_blocks = total / (4 * order_.stride) * order_.stride;
    const int words = in_blocks + (total - 4 * in_blocks + 3) / 4;
    double sum = 0;
    for (long long unit = begin; unit < end; ++unit) {
      const Part of{(unit - tile_) * order_.depth + (long long)split * part, part, in_blocks, words};
      if constexpr (kDoubles) {
        sum = add_part(sum, of);
      } else {
        sum = add_part_in_intervals(sum, of);
      }
    }
    return sum;
  }

  // The part of a work unit that one warp sums: the first depth, the number of depths, and the number of words per
  // lane. `in_blocks` is kInBlocks and `words` is kWords of Depth (operand.cuh).
  struct Part {
    long long begin;
    int size, in_blocks, words;
  };

  // float64: adds products one after another.
  __device__ double add_part(double sum, const Part& of) {
    for (int q = 0; q < of.words; q += 2) {
      Pair<double> pair;
      load(pair, of, q);
#pragma unroll
      for (int i = 0; i < kPair; ++i) sum = fma(pair.a[i], pair.b[i], sum);
    }
    return sum;
  }

  // Other types: a pair of words takes one instruction, or for float32 one instruction per tf32 product.
  __device__ double add_part_in_intervals(double sum, const Part& of) {
    const int steps = kHalf ? 1 : order_.products, each = order_.interval > 0 ? order_.interval : of.words;
    for (int from = 0; from < of.words; from += each) {
      const int left = of.words - from, pairs = ((left < each ? left : each) + 1) / 2;
      float alone = order_.interval > 0 ? 0.0f : (float)sum;
#pragma unroll 1
      for (int i = 0; i < pairs * steps; ++i) {
        Pair<float> pair;
        load(pair, of, from + 2 * (order_.by_steps ? i % pairs : i / steps));
        if (!kHalf) split_tf32(pair, order_.by_steps ? i / pairs : i % steps);
        alone = tensor::sum<least_exponent<T>>(alone, pair.a, pair.b);
      }
      sum = order_.interval > 0 ? add(sum, alone) : alone;
    }
    return sum;
  }

  // Replaces the elements of a pair by the tf32 parts that instruction `step` of the pair multiplies.
  __device__ void split_tf32(Pair<float>& pair, int step) const {
    using Unit = Tensor<float, 6>;
    const int of_six = step + 6 - order_.products, parts = order_.products / 3 + 1;
#pragma unroll
    for (int i = 0; i < kPair; ++i) {
      pair.a[i] = part(pair.a[i], Unit::left(of_six), parts);
      pair.b[i] = part(pair.b[i], Unit::right(of_six), parts);
    }
  }

  static __device__ float part(float x, int which, int parts) {
    float part = x;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      part = i + 1 < parts ? Tensor<float, 6>::nearest_tf32(x) : x;
      if (i == which) break;
      x -= part;
    }
    return __uint_as_float(__float_as_uint(part) & 0xffffe000u);  // the bits that the tensor cores read
  }

  // Loads words q and q + 1 of four lanes; elements beyond the part or beyond k are zero.
  template <typename Number>
  __device__ void load(Pair<Number>& pair, const Part& of, int q) {
#pragma unroll
    for (int i = 0; i < kPair; ++i) {
      const int word = q + i / (kPair / 2), lane = i % (kPair / 2) / kPerWord, half = i % kPerWord;
      const bool interleaved = word < of.in_blocks || of.in_blocks == of.words;
      const int stride = interleaved ? order_.stride : 1;
      const int at = kPerWord * (word / stride * 4 * stride + word % stride + lane * stride) + half;
      const long long l = of.begin + at;
      const bool there = word < of.words && at < of.size && l < order_.k;
      pair.a[i] = there ? (Number)known(a_(l)) : Number(0);
      pair.b[i] = there ? (Number)known(b_(l)) : Number(0);
    }
  }

  __device__ double known(double x) {
    const double size = x < 0 ? -x : x;
    const bool is = x == 0 || (size >= least_factor<T> && size < most_factor<T>);
    if (!is) is_known_ = false;
    return is ? x : 0;
  }

  const Order& order_;
  const A& a_;
  const B& b_;
  const long long tile_;
  int first_ = 0, blocks_ = 1;
  bool is_known_ = true;
};

}  // namespace tsm2
