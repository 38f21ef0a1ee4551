// Operand tiles: asynchronous copies of a tile from global to shared memory, and conflict-free reads of its fragment
// words.
//
// Both operands of C = A · B have the same interface. An operand has an *outer* index (the row of A, or the column of
// B) and a *depth* index (the index of the sum over k). In memory, it consists of contiguous lines:
//
//        along the depth                     across the depth
//        depth →                             outer →
//      ┌──────────────────┐ outer 0        ┌──────────────────┐ depth 0
//      ├──────────────────┤       1        ├──────────────────┤       1
//      ├──────────────────┤       2        ├──────────────────┤       2
//       row-major A, column-major B        column-major A, row-major B
//
// cp.async copies a tile without transposing it, 16 bytes at a time if its alignment allows. Threads neither wait for
// loads nor hold loaded data in registers. Zeros fill the part of a tile outside the operand; they do not change the
// sums.
//
// A lane (g = lane / 4, t = lane % 4) reads outer indices 8·e + g, for e = 0, 1, …, at the depths of `Depth`. Two
// measures let each read of a warp use all 32 banks. First, the words of lanes t and t + 1 are kStride words apart.
// Second, the 16-byte pieces of each line are permuted: their offsets are combined by exclusive or with `rotation` of
// the line's index.
//
// An application can supply its own operand (labels as a one-hot matrix, the difference of two matrices): a class with
// the same members Source, kBytes, kPerWord, Reader and words().
#pragma once
#include "kernels/tsm2/fragments.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/ldmatrix.cuh"
#include "kernels/ptx/memory.cuh"

namespace tsm2 {

// The greatest power of two that divides `divides` and is not above `at_most`.
constexpr int greatest_power_of_two(int divides, int at_most) {
  int power = 1;
  while (power < at_most && divides % (2 * power) == 0) power *= 2;
  return power;
}

// Assigns the `kDepth` depths of a warp to the fragment words of its lanes. Word q of lane t holds kPerWord consecutive
// depths, beginning at first(q) + t · step(q). In whole blocks of 4·kStride words, each lane has kStride adjacent
// words. After the last whole block, adjacent words belong to adjacent lanes.
template <int kDepth, int kPerWord, int kStride>
struct Depth {
  static constexpr int kTotal = (kDepth + kPerWord - 1) / kPerWord;
  static constexpr int kInBlocks = kTotal / (4 * kStride) * kStride;           // words per lane in whole blocks
  static constexpr int kWords = kInBlocks + (kTotal - 4 * kInBlocks + 3) / 4;  // all words per lane
  static constexpr int step(int q) { return kPerWord * (in_blocks(q) ? kStride : 1); }
  static constexpr int first(int q) {
    return kPerWord * (in_blocks(q) ? q / kStride * 4 * kStride + q % kStride : 4 * q);
  }
  static constexpr bool in_blocks(int q) { return kInBlocks == kWords || q < kInBlocks; }
};

// A tile of kOuter × kDepth elements of type T. Template parameters:
//
//   kUnit         bytes per copy: 16, 8 or 4 by cp.async, 2 by ordinary loads
//   kPacked       true if lines have no gaps and a tile consists of whole lines: a tile is then contiguous in memory,
//                 and its copies do not depend on the length of a line
//   kPrefetches   true if each copy makes the level-2 cache fetch 256 bytes. For tiles with short lines, which the next
//                 tiles continue: an H200 reads 64-byte pieces at half of its bandwidth, 128-byte pieces at 90 %
//   kStays        true if the level-2 cache evicts this operand last, because many tiles read it
//   kStride       as in Depth
template <typename T, bool kAlongDepth, int kOuter, int kDepth, int kUnit, bool kPacked, bool kPrefetches, bool kStays,
          int kStride>
struct Operand {
  using Word = typename Tensor<T, 3>::Word;
  static constexpr int kPerWord = sizeof(T) == 2 ? 2 : 1;
  static constexpr int kLines = kAlongDepth ? kOuter : kDepth, kLength = kAlongDepth ? kDepth : kOuter;
  static constexpr int kBytes = (kLines * kLength * (int)sizeof(T) + 127) / 128 * 128;

  // Element (i, l) with outer index i and depth l is data[i·leading + l] if lines run along the depth, else
  // data[l·leading + i]. `outer` and `depth` are the sizes of the operand in these two dimensions. The last element is
  // data[size − 1]; in an operand without gaps, the last line may be shorter than the others.
  struct Source {
    const T* data;
    long long leading, outer, depth, size;
  };

  static constexpr int kLine = 128;  // bytes of a level-2 cache line

  // With kEightLines, a warp reads 4 banks from each of 8 consecutive lines at once. Otherwise it reads 8 banks from
  // each of 4 lines that are kSpacing lines apart.
  static constexpr bool kEightLines = sizeof(T) == 2 || (kAlongDepth && sizeof(T) == 4);
  static constexpr int kLineBytes = kLength * (int)sizeof(T), kSpacing = kEightLines || kAlongDepth ? 1 : kStride;
  static constexpr int kPeriod = greatest_power_of_two(kLineBytes / 4 * kSpacing, 32);
  static constexpr bool kRotates = !kPacked && kLineBytes % (4 * kPeriod) == 0;
  // True if one ldmatrix loads the four words of `words`.
  static constexpr bool kMatrices =
      sizeof(Word) == 4 && kLineBytes % 16 == 0 && kStride == 1 && (kAlongDepth || (sizeof(T) == 2 && kDepth % 8 == 0));

  // The permutation of line `line`: byte offsets within the line are combined with this value by exclusive or.
  static __device__ int rotation(int line) {
    if (!kRotates) return 0;
    return kEightLines ? line % 8 * kPeriod / 32 * 16 : line / kSpacing % 4 * kPeriod / 32 * 32;
  }

  static constexpr int kElements = kUnit / (int)sizeof(T);  // elements per copy
  static constexpr int kUnits = kLines * kLineBytes / kUnit, kUnitsALine = kPacked ? kUnits : kLineBytes / kUnit;
  static_assert(kPacked ? kLines * kLineBytes % kUnit == 0 : kLineBytes % kUnit == 0, "a tile is whole units");

  // Copies consecutive tiles along the depth. The copies of a tile are split among kThreads threads; each thread has a
  // Reader.
  template <int kThreads>
  class Reader {
   public:
    __device__ Reader(const Source& from, int thread) : from_(from), thread_(thread) {
      const int line = kPacked ? 0 : thread / kUnitsALine;
      first_ = line * from.leading + (thread - line * kUnitsALine) * kElements;
    }

    // Moves to the tile whose first element is (outer, depth).
    __device__ __forceinline__ void move_to(long long outer, long long depth) {
      const long long first = kAlongDepth ? outer * from_.leading + depth : depth * from_.leading + outer;
      begin_ = from_.data + first;
      length_ = kAlongDepth ? from_.depth - depth : from_.outer - outer;
      left_ = from_.size - first;
    }

    // Moves to the next tile along the depth.
    __device__ __forceinline__ void next() {
      const long long elements = kAlongDepth ? kDepth : kDepth * from_.leading;
      begin_ += elements;
      left_ -= elements;
      if (kAlongDepth) length_ -= kDepth;
    }

    // Issues the copies of the current tile.
    __device__ __forceinline__ void copy(unsigned char* tile) const {
      // If the tile's last line is complete, all its lines are complete.
      const bool whole = length_ >= kLength && left_ >= (kLines - 1) * from_.leading + kLength;
      if (kPacked ? left_ >= kUnits * kElements : whole) {
        copy_whole(tile);
      } else {
        copy_ragged(tile);
      }
    }

   private:
    __device__ __forceinline__ void copy_whole(unsigned char* tile) const {
      // If the threads together copy whole lines at a time, a thread's copies are kStep lines apart, at the same
      // position in each line.
      if constexpr (kPacked || kThreads % kUnitsALine == 0) {
        constexpr int kStep = kPacked ? 0 : kThreads / kUnitsALine;
        const int line = kPacked ? 0 : thread_ / kUnitsALine;
        const int at = (thread_ - line * (kPacked ? 0 : kUnitsALine)) * kElements;
        const T* source = begin_ + first_;
        const long long step = kPacked ? kThreads * kElements : kStep * from_.leading;
#pragma unroll
        for (int i = 0; i < (kUnits + kThreads - 1) / kThreads; ++i) {
          if (kUnits % kThreads != 0 && i * kThreads + thread_ >= kUnits) break;
          copy_unit(tile + place(line + i * kStep, at + (kPacked ? i * kThreads * kElements : 0)), source, kElements);
          source += step;
        }
      } else {
#pragma unroll 4
        for (int unit = thread_; unit < kUnits; unit += kThreads) {
          const int line = unit / kUnitsALine, at = unit % kUnitsALine * kElements;
          copy_unit(tile + place(line, at), begin_ + line * from_.leading + at, kElements);
        }
      }
    }

    // Copies the part of the tile inside the operand, and fills the part outside with zeros.
    __device__ __forceinline__ void copy_ragged(unsigned char* tile) const {
#pragma unroll 1
      for (int unit = thread_; unit < kUnits; unit += kThreads) {
        const int line = unit / kUnitsALine, at = unit % kUnitsALine * kElements;
        const long long offset = line * from_.leading + at;
        long long present = left_ - offset;
        if (!kPacked && present > length_ - at) present = length_ - at;
        copy_unit(tile + place(line, at), present > 0 ? begin_ + offset : from_.data,
                  present <= 0          ? 0
                  : present < kElements ? (int)present
                                        : kElements);
      }
    }

    const Source& from_;
    const int thread_;
    long long first_;          // elements from the tile's first element to this thread's first copy
    const T* begin_;           // the tile's first element
    long long length_, left_;  // elements from *begin_ to the end of its line, of the operand
  };

  // Loads words q and q + 1 of this lane at two outer indices: to[i] is word q + i / 2 at outer index first_outer +
  // 8·(e + i % 2) + g. `Depths` is the Depth of the warp, whose first depth in the tile is first_depth. The warp has
  // `kEights` groups of eight outer indices, beginning at first_outer; e is the number of a group. Depths outside the
  // tile are read as zeros. Outer indices outside the tile read other elements of the tile; their sums are not used.
  // With kBeyond, whole groups may lie outside the tile.
  template <typename Depths, int kEights, bool kBeyond = false>
  static __device__ void words(Word (&to)[4], const unsigned char* tile, int first_outer, int e, int first_depth,
                               int q) {
    const int lane = threadIdx.x % 32;
    if constexpr (kMatrices) {
      const int eight = e + lane / 8 % 2 < kEights ? e + lane / 8 % 2 : e, row = lane % 8;
      const int word = q + lane / 16 < Depths::kWords ? q + lane / 16 : q;
      const int outer = first_outer + 8 * eight + (kAlongDepth ? row : 0);
      const int depth = first_depth + 4 * kPerWord * word + (kAlongDepth ? 0 : row);
      unsigned bits[4];
      ptx::ldmatrix_x4<!kAlongDepth>(bits, element<kBeyond>(tile, outer, depth));
      memcpy(to, bits, sizeof bits);
      if (q + 1 >= Depths::kWords) to[2] = to[3] = Word(0);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // If kWords and kEights are even, all four words exist. The compiler cannot derive that if e or q is not a
        // constant.
        const bool present =
            (Depths::kWords % 2 == 0 || q + i / 2 < Depths::kWords) && (kEights % 2 == 0 || e + i % 2 < kEights);
        to[i] = present ? word<Depths, kBeyond>(tile, first_outer + 8 * (e + i % 2) + lane / 4, first_depth, q + i / 2,
                                                lane % 4)
                        : Word(0);
      }
    }
  }

 private:
  // The byte offset of element `at` of a line in the tile. A packed tile counts as one line, line 0.
  static __device__ int place(int line, int at) {
    return line * kLineBytes + (at * (int)sizeof(T) ^ (kPacked ? 0 : rotation(line)));
  }

  static __device__ void copy_unit(unsigned char* to, const T* from, int elements) {
    // Prefetches once per cache line. A cache policy on the copies themselves is as fast, but ptxas 13.0 can drop the
    // policy and then emit an illegal instruction.
    if (kStays && reinterpret_cast<unsigned long long>(from) % kLine == 0) ptx::prefetch<true>(from);
    if constexpr (kUnit == 2) {
      *reinterpret_cast<T*>(to) = elements ? *from : T{};
    } else {
      ptx::cp_async<kUnit, kPrefetches ? 256 : 0>(to, from, elements * (int)sizeof(T));
    }
  }

  // The address of an element; for an outer index outside the tile, the address of another element of the tile.
  template <bool kBeyond>
  static __device__ const unsigned char* element(const unsigned char* tile, int outer, int depth) {
    // If lines run across the depth, ldmatrix reads eight outer indices per address, so all eight must be inside the
    // tile.
    if ((kBeyond || kOuter % 8 != 0) && outer >= kOuter) outer = kMatrices && !kAlongDepth ? kOuter - 8 : kOuter - 1;
    const int line = kAlongDepth ? outer : depth, at = kAlongDepth ? depth : outer;
    return tile + line * kLineBytes + ((at * (int)sizeof(T)) ^ rotation(line));
  }

  template <typename Depths, bool kBeyond>
  static __device__ Word word(const unsigned char* tile, int outer, int first_depth, int q, int t) {
    // True if some word extends beyond the depth of the tile.
    constexpr bool kMasks = kDepth % (Depths::kWords * 4 * kPerWord) != 0;
    const int depth = first_depth + Depths::first(q) + t * Depths::step(q);
    if (kMasks && depth >= kDepth) return Word(0);
    if constexpr (kPerWord == 1) {
      return *reinterpret_cast<const Word*>(element<kBeyond>(tile, outer, depth));
    } else if constexpr (kAlongDepth && kLineBytes % 4 == 0) {
      const Word pair = *reinterpret_cast<const Word*>(element<kBeyond>(tile, outer, depth));
      return kMasks && depth + 1 >= kDepth ? pair & 0xffffu : pair;
    } else {
      const auto half = [&](int i) -> Word {
        return *reinterpret_cast<const unsigned short*>(element<kBeyond>(tile, outer, depth + i));
      };
      return half(0) | (kMasks && depth + 1 >= kDepth ? 0 : half(1)) << 16;
    }
  }
};

}  // namespace tsm2
