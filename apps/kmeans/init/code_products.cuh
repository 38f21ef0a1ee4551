// Products of quantized rows (quantized_copy.cuh) with quantized points on the tensor cores, and the test whether a
// point can be nearer to a row than D² (symbols and derivation: see the head of plusplus_pruned.cuh).
//
// Products are exact: codes and q are whole numbers. A lane takes 16 bytes of each of four rows, that is 32 codes of
// four bits, and mma takes these after three instructions per word:
//
//                  columns 0 … 31   32 … 63   64 … 95   96 … 127
//                     t = 0          t = 1     t = 2      t = 3
//     rows g          16 bytes       ███       ███        ███
//     rows g + 8      ███            ███       ███        ███
//
// A word has eight columns: four in the lower halves of its bytes, and four in the upper halves. Word w of the four
// lanes t is one mma of 32 columns. Points are in shared memory in this order.
#pragma once
#include "apps/kmeans/init/quantized_copy.cuh"
#include "apps/kmeans/init/step_points.cuh"
#include "kernels/device/block_reduce.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/mma.cuh"

namespace kmeans {

// The lower bound of a row's squared distance to a point is below D² if
//
//   s (factor · product + constant) + 2 e · norm − square  >  ‖y‖² − D²
//
// With the upper plane ([0]), `product` is U·q; with both planes ([1]), it is 16 U·q + 256 L·a. `square` is ‖c‖² less
// its rounding error.
struct PointTest {
  float norm, square, factor[2], constant[2];
};

// Quantizes the points of a step (step_points.cuh), one per block. Writes the table of points (CodeProducts) and the
// tests.
template <typename T, int kPoints>
__global__ void __launch_bounds__(kCenterThreads)
    quantize_points(const T* points, int d, const QuantizedCopy<T> copy, unsigned* table, PointTest* tests) {
  ptx::griddepcontrol_wait();
  constexpr int kBlocks = (kPoints + 7) / 8;
  constexpr float kMost = 127 * 256 + 127;
  const int p = blockIdx.x, words = 4 * copy.groups;
  const T* c = points + (long long)p * point_pitch<T>(d);
  const auto scale_of = [&](int f) { return f < d ? copy.scales[f] : 0.0f; };
  Doubles<3> found = {};  // ‖c‖², ‖u‖², and the largest |u|
  for (int word = threadIdx.x; word < words; word += kCenterThreads) {
    float y[8];
    load_columns<false>(c, copy.mean, copy.unit, word, d, y);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const double size = fabsf(y[i] * scale_of(8 * word + i));
      found.at[0] += (double)y[i] * y[i];
      found.at[1] += size * size;
      found.at[2] = most_of(2, found.at[2], size);
    }
  }
  found = over_block(found, [](int i, double x, double y) { return i < 2 ? x + y : most_of(i, x, y); });
  const float square = (float)found.at[0], scale = (float)found.at[2] / kMost, inverse = scale > 0 ? 1 / scale : 0;
  Doubles<4> rounded = {};  // ‖δ‖², ‖b‖², and the sums of q and of b
  for (int word = threadIdx.x; word < words; word += kCenterThreads) {
    float y[8];
    load_columns<false>(c, copy.mean, copy.unit, word, d, y);
    unsigned upper[2] = {}, lower[2] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float u = y[i] * scale_of(8 * word + i);
      const int q = (int)rintf(fminf(fmaxf(u * inverse, -kMost), kMost)), high = (q + 128) >> 8, low = q - 256 * high;
      const float beside = u - scale * (float)q;
      rounded.at[0] += (double)beside * beside;
      rounded.at[1] += low * low;
      rounded.at[2] += q;
      rounded.at[3] += low;
      upper[i / 4] |= (high & 255u) << 8 * (i % 4);
      lower[i / 4] |= (low & 255u) << 8 * (i % 4);
    }
    // The lane t and the group of this word in CodeProducts::load.
    const int block = word / 16, inner = word % 16, full = copy.groups / 4;
    const int group = 4 * block + (block < full ? inner % 4 : inner / 4), t = block < full ? inner / 4 : inner % 4;
    unsigned* to = table + group * kBlocks * 64 + (p % 8 * 4 + t) * 2 * kBlocks + p / 8 * 2;
    *reinterpret_cast<uint2*>(to) = {upper[0], upper[1]};
    *reinterpret_cast<uint2*>(to + copy.groups * kBlocks * 64) = {lower[0], lower[1]};
  }
  rounded = over_block(rounded, [](int, double x, double y) { return x + y; });
  if (threadIdx.x != 0) return;
  // v of both planes differs by at most 1 / 2 per element from v of the upper plane. L·b is 7.5 times the sum of b,
  // with an error of at most 7.5 √d ‖b‖. Numbers of the test are at most 16 √d ‖u‖, and their rounding errors 2⁻²⁰ of
  // that.
  const float root = sqrtf((float)d), of_upper = 0.5f * sqrtf((float)*copy.largest), of_both = of_upper + 0.5f * root;
  const float error = 2.001f * error_bound((float)rounded.at[0]),
              of_lower = 15.01f * root * sqrtf((float)rounded.at[1]);
  const float sum = (float)rounded.at[2], sum_of_lower = (float)rounded.at[3];
  const float roundings = 0x1p-16f * root * sqrtf((float)found.at[1]);
  tests[p] = {sqrtf(square),
              square - copy.roundings * square,
              {2 * scale, scale / 8},
              {roundings + error * of_upper - scale * 15 * sum,
               roundings + error * of_both + scale / 16 * (of_lower - (255 * sum - 15 * sum_of_lower))}};
}

// Products of the codes of 32 rows with 8·kBlocks points by a warp. Lane (g, t) = (lane / 4, lane % 4) has those of
// rows g, g + 8, g + 16 and g + 24 with points 2·t, 2·t + 1 and, for the second block, 2·t + 8 and 2·t + 9. The codes
// are multiplied by a, and by b too if kTables is 2.
template <int kBlocks, int kTables>
struct CodeProducts {
  // Number of words of a table for 32 columns: the operands B of mma for lane 0, for lane 1, and so on.
  static constexpr int kOfGroup = kBlocks * 64;
  using Operands = simt::Vector<unsigned, 2 * kBlocks>;
  int at[kTables][2][kBlocks][4] = {};  // d of mma for rows 0 … 15 and for rows 16 … 31

  // The product of row g + 8·i with point 8·j + 2·t + e.
  __device__ __forceinline__ int of(int i, int j, int e) const {
    const int place = 2 * (i % 2) + e, high = at[0][i / 2][j][place];
    return kTables == 1 ? high : 256 * high + at[kTables - 1][i / 2][j][place];
  }

  // Adds the products of one word of each of four rows: `words.at[i]` of row g + 8·i. `table` is that of a for this
  // lane; the table of b is `size` words later.
  __device__ __forceinline__ void multiply(const simt::Vector<unsigned, 4>& words, const unsigned* table, int size) {
    constexpr unsigned kLow = 0x0f0f0f0f;
    Operands points[kTables];
#pragma unroll
    for (int i = 0; i < kTables; ++i) points[i] = *reinterpret_cast<const Operands*>(table + i * size);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      const unsigned x = words.at[2 * tile], y = words.at[2 * tile + 1];
      const unsigned a[4] = {x & kLow, y & kLow, x >> 4 & kLow, y >> 4 & kLow};
#pragma unroll
      for (int i = 0; i < kTables; ++i)
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) {
          const unsigned b[2] = {points[i].at[2 * j], points[i].at[2 * j + 1]};
          ptx::mma_m16n8k32_u8_s8(at[i][tile][j], a, b);
        }
    }
  }

  // A block of a row is up to 128 columns, in `left` groups of 32, or more than four groups if the row goes on. Loads
  // this lane's words of a block of each of four rows: `rows[i]` is the offset in words of row g + 8·i.
  static __device__ __forceinline__ void load(const unsigned* from, const int (&rows)[4], int left, uint4 (&words)[4]) {
    const int t = simt::lane() % 4;
    if (left >= 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = *reinterpret_cast<const uint4*>(from + rows[i] + 4 * t);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const unsigned* row = from + rows[i] + t;
        words[i] = {row[0], left > 1 ? row[4] : 0, left > 2 ? row[8] : 0, 0};
      }
    }
  }

  // Adds the products over the columns of a block. `table` is that of the block.
  __device__ __forceinline__ void add(const uint4 (&words)[4], int left, const unsigned* table, int size) {
    table += 2 * kBlocks * simt::lane();
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const auto word = [&](const uint4& some) { return w == 0 ? some.x : w == 1 ? some.y : w == 2 ? some.z : some.w; };
      if (w < left)
        multiply({{word(words[0]), word(words[1]), word(words[2]), word(words[3])}}, table + w * kOfGroup, size);
    }
  }

  // Adds the products over all columns of rows of a plane in global memory, which is loaded one block ahead.
  __device__ __forceinline__ void add_plane(const unsigned* plane, const int (&rows)[4], int groups,
                                            const unsigned* table, int size) {
    uint4 now[4], next[4];
    load(plane, rows, groups, now);
#pragma unroll 1
    for (int left = groups; left > 0; left -= 4) {
      plane += 16;
      if (left > 4) load(plane, rows, left - 4, next);
      add(now, left, table, size);
      table += 4 * kOfGroup;
#pragma unroll
      for (int i = 0; i < 4; ++i) now[i] = next[i];
    }
  }
};

// Returns in lane l the set of points, as bits, for which the lower bound of row l is below D², or is not a number.
// `product(i, j, e)` is the product of row g + 8·i with point 8·j + 2·t + e, and `planes` the number of planes. For row
// l, lane l passes the row's scale s, twice its error, and ‖y‖² − D².
template <int kBlocks, typename Product>
__device__ __forceinline__ unsigned ambiguous_points(Product product, int planes, float scale, float error, float most,
                                                     const PointTest* tests) {
  const int lane = simt::lane(), g = lane / 4, t = lane % 4;
  unsigned found[2] = {};  // of rows g and g + 8, and of rows g + 16 and g + 24
#pragma unroll
  for (int j = 0; j < kBlocks; ++j)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const PointTest& test = tests[8 * j + 2 * t + e];
      const float factor = test.factor[planes - 1], constant = test.constant[planes - 1];
      const float norm = test.norm, square = test.square;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float scale_i = simt::shuffle(scale, 8 * i + g), error_i = simt::shuffle(error, 8 * i + g);
        const float most_i = simt::shuffle(most, 8 * i + g);
        const float twice = scale_i * (factor * product(i, j, e) + constant);
        const bool below = !(twice + (error_i * norm - square) <= most_i);
        found[i / 2] |= (unsigned)below << (8 * j + 2 * t + e + 16 * (i % 2));
      }
    }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    found[half] |= simt::shuffle_xor(found[half], 1);
    found[half] |= simt::shuffle_xor(found[half], 2);
  }
  const unsigned lower = simt::shuffle(found[0], lane % 8 * 4), upper = simt::shuffle(found[1], lane % 8 * 4);
  return (lane < 16 ? lower : upper) >> (lane & 8 ? 16 : 0) & 0xffff;
}

// A warp's queue of rows that the upper plane leaves ambiguous, with the products of the upper plane.
template <int kPoints>
class CodeQueue {
 public:
  static constexpr int kBlocks = (kPoints + 7) / 8;
  // kOfRow: number of products per row, an even number.
  static constexpr int kRoom = 64, kOfRow = (kPoints + 1) / 2 * 2, kBytes = kRoom * (kOfRow + 1) * (int)sizeof(int);

  __device__ explicit CodeQueue(void* items)
      : products_(static_cast<int*>(items) + threadIdx.x / 32 * kRoom * (kOfRow + 1)),
        rows_(products_ + kRoom * kOfRow) {}

  // Adds row `row` of each lane whose `wanted` is true; lane l has row l of `products`. The queue has fewer than 32
  // rows.
  __device__ __forceinline__ void add(bool wanted, int row, const CodeProducts<kBlocks, 2>& products) {
    __syncwarp();  // all lanes have read the rows that were removed
    const unsigned all = __ballot_sync(simt::every_lane, wanted);
    const int lane = simt::lane();
    const auto place = [&](int l) { return waiting_ + __popc(all & ((1u << l) - 1)); };
    if (wanted) rows_[place(lane)] = row;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int of_row = 8 * i + lane / 4;
      if (all >> of_row & 1) {
        int* to = products_ + place(of_row) * kOfRow + 2 * (lane % 4);
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) {
          if (8 * j + 2 * (lane % 4) >= kPoints) continue;
          *reinterpret_cast<uint2*>(to + 8 * j) = {(unsigned)products.of(i, j, 0), (unsigned)products.of(i, j, 1)};
        }
      }
    }
    waiting_ += __popc(all);
  }

  // Removes up to 32 rows, if there are at least `least`, and returns their number. Lane l gets row l; lanes past the
  // last row get the first row that is removed.
  __device__ __forceinline__ int take(int least, int& row) {
    if (waiting_ < least) return 0;
    const int taken = waiting_ < 32 ? waiting_ : 32, lane = simt::lane();
    waiting_ -= taken;
    __syncwarp();
    row = rows_[waiting_ + (lane < taken ? lane : 0)];
    return taken;
  }

  // Of the `taken` rows that `take` has removed last, before rows are added: the product of row g + 8·i with point 8·j
  // + 2·t + e. It is undefined past the last point.
  __device__ __forceinline__ int of(int taken, int i, int j, int e) const {
    const int of_row = 8 * i + simt::lane() / 4, place = waiting_ + (of_row < taken ? of_row : 0);
    return products_[place * kOfRow + 8 * j + 2 * (simt::lane() % 4) + e];
  }

 private:
  int* products_;
  int* rows_;
  int waiting_ = 0;
};

}  // namespace kmeans
