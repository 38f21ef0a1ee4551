// Exact sums of words (at_rest/exact_code.py) as products on tensor cores. Each of eight warps sums 128 bytes of each
// row of a strip. tile_pipeline.cuh defines strip, stripe and stage.
//
//   S_k   Σ w_k(r) · word over the words of a code block (one column of a stripe), k = 0 … 4
//   r     number of words from this word to the end of its code block, including this word
//   w_k   1, r, C(r + 1, 2), C(r + 2, 3), last_weight(r)
//
// A tensor-core instruction multiplies 16 columns × 16 rows of words by 16 rows × 8 columns of weights. The weights of
// S₂, S₃ and S₄ are split into a lower and an upper part, with one column per part. So each sum of 512 products is an
// integer below 2⁵³.
//
// Why it is fast: integers below 2⁵³ need no conversion. The double with the bits of n is n · 2⁻¹⁰⁷⁴, a denormal, and
// its products with weights, and the sums of these products, are exact. This takes four instructions per word; 32-bit
// multiply-adds with 64-bit sums took six dependent instructions.
#pragma once
#include "apps/abft/at_rest/gpu/last_weight.cuh"
#include "apps/abft/at_rest/gpu/tile_pipeline.cuh"
#include "kernels/ptx/mma.cuh"

namespace abft {

// Number of columns of weights: one each for S₀ and S₁, two each for S₂, S₃ and S₄. kPartBits[k] is the number of bits
// of the lower part of the weights of S_k.
constexpr int kProducts = 8;
constexpr int kPartBits[kSums] = {0, 0, 9, 12, 11};

// The table of weights in shared memory: kProducts columns for each of the kStripe values of r.
class WordWeights {
 public:
  static constexpr int kBytes = kStripe * kProducts * (int)sizeof(double);

  __device__ explicit WordWeights(unsigned char* shared) : at_(reinterpret_cast<double*>(shared)) {}

  // Fills the table. The first `threads` threads of the thread block execute it; a barrier must follow.
  __device__ __forceinline__ void set_up(int threads) const {
    for (int i = threadIdx.x; i < kStripe; i += threads) {
      const unsigned r = i + 1,
                     of[kSums] = {1, r, r * (r + 1) / 2, (unsigned)(r * (r + 1ull) * (r + 2) / 6), last_weight(r)};
      *of_row(i, 0) = of[0], *of_row(i, 1) = of[1];
#pragma unroll
      for (int k = 2; k < kSums; ++k) {
        *of_row(i, 2 * k - 2) = of[k] % (1u << kPartBits[k]);
        *of_row(i, 2 * k - 1) = of[k] >> kPartBits[k];
      }
    }
  }
  // Address of the weight in column `product` for a word with r = left + 1, where `left` words of its code block
  // follow. The address for the word four rows earlier is larger by 4 · kProducts entries. The columns are permuted, so
  // that a warp that reads four rows of weights accesses all banks.
  __device__ __forceinline__ double* of_row(int left, int product) const {
    return at_ + kProducts * left + (product ^ (left / 2 % 2 * 4));
  }

 private:
  double* const at_;
};

// The sums of the words in a warp's 128 bytes of every row of a stripe. Lane 4·g + t reads the 16 bytes from byte 16·g
// on of every fourth row, beginning with row t. These 16 bytes are four words of four code blocks: two rows in each of
// two left operands.
class WordSums {
 public:
  // `rows` is the number of rows of the stripe. `present` is the number of these rows that contain the lane's bytes; it
  // is less than `rows` at the end of the matrix.
  __device__ WordSums(const WordWeights& weights, int rows, int present)
      : weights_(weights), rows_(rows), present_(present), sums_{} {}

  // Offset of the lane's 16 bytes in the warp's 128 bytes.
  static __device__ __forceinline__ int offset() { return (int)threadIdx.x % 32 / 4 * 16; }

  // Adds the words of one stage to the sums. The first row of the stage is row `first` of the stripe, and `mine` points
  // to the lane's bytes in that row. kWhole: whether the matrix contains all bytes of the stage.
  template <bool kWhole>
  __device__ __forceinline__ void add(const unsigned char* mine, int first) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, left = rows_ - 1 - first - t;
    const double* weights = weights_.of_row(left, g);
    mine += t * kPitch;
#pragma unroll 1
    for (int i = 0; i < kRows; i += 16, mine += 16 * kPitch, weights -= 16 * kProducts) {
      double a[2][8], b[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        uint4 words = {0, 0, 0, 0};
        if (kWhole || first + i + 4 * j + t < present_) words = *reinterpret_cast<const uint4*>(mine + 4 * j * kPitch);
        a[0][2 * j] = denormal(words.x), a[0][2 * j + 1] = denormal(words.y);
        a[1][2 * j] = denormal(words.z), a[1][2 * j + 1] = denormal(words.w);
        b[j] = kWhole || left - i - 4 * j >= 0 ? weights[-4 * j * kProducts] : 0.0;
      }
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) ptx::mma_m16n8k16(sums_[pair], a[pair], b);
    }
  }

  // Writes the sums of the lane's four code blocks, in stripe `stripe` and from column `column` of `width` on, unless
  // that is beyond the last column. If there are expected sums, lists the blocks that differ from them, and writes
  // nothing if none of the four does. All lanes of the warp execute it.
  __device__ __forceinline__ void store(unsigned long long* sums, const Comparison& compared, int stripe,
                                        long long column, long long width) const {
    using Pair = simt::Vector<unsigned long long, 2>;
    // Lane t holds the sums for weight columns 2·t and 2·t + 1: S₀ and S₁ if t is 0, otherwise the lower and the upper
    // part of S_{t + 1}.
    const int t = threadIdx.x % 4;
    Pair first[2], second[2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        first[half][k] = simt::bits_of<unsigned long long>(sums_[half][2 * k]);
        second[half][k] = simt::bits_of<unsigned long long>(sums_[half][2 * k + 1]);
        if (t > 0) first[half][k] += second[half][k] << kPartBits[t + 1];
      }
    const long long at = (stripe * (long long)kSums + (t > 0 ? t + 1 : 0)) * width + column;
    bool writes = column < width;
    if (compared.expected != nullptr) {
      unsigned differ = 0;  // a bit for each code block
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto* const expected = reinterpret_cast<const Pair*>(compared.expected + at + 2 * half);
        const Pair of_first = writes ? *expected : first[half];
        const Pair of_second = writes && t == 0 ? expected[width / 2] : second[half];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const bool differs = of_first[k] != first[half][k] || of_second[k] != second[half][k];
          differ |= (unsigned)differs << (2 * half + k);
        }
      }
      differ |= simt::shuffle_xor(differ, 1);
      differ |= simt::shuffle_xor(differ, 2);
      writes = differ != 0;
      for (int block = 0; t == 0 && block < 4; ++block)
        if (differ >> block & 1) compared.listed[atomicAdd(compared.count, 1ull)] = stripe * width + column + block;
    }
    if (!writes) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *reinterpret_cast<Pair*>(sums + at + 2 * half) = first[half];
      if (t == 0) *reinterpret_cast<Pair*>(sums + at + width + 2 * half) = second[half];
    }
  }

 private:
  // The double with the bits of `word`: word · 2⁻¹⁰⁷⁴.
  static __device__ __forceinline__ double denormal(unsigned word) {
    return simt::bits_of<double>((unsigned long long)word);
  }

  const WordWeights& weights_;
  const int rows_, present_;
  double sums_[2][4];
};

}  // namespace abft
