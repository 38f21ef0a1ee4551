// The rows of a product that are suspected: a second look at each, and of those that are suspected then, too, the
// elements that are wrong.
//
//   A (m × k), B (k × w), C (m × w), rows that are listed   →   the elements of C that are wrong, and what they should
//                                                           be
//
// At the second look a row has to be off by more than row · q + row_absolute (row_checksums.cuh). Then its elements are
// computed again. Where the order of C's sums is known (emulated_gemm.cuh), to the bit: an element that has others is
// wrong. Else as exactly as two doubles hold them (exact_products.cuh), Σ|ab| beside them, and by the statistical
// threshold how far roundings walk; and each is judged by thresholds.py's bounds. What is wrong is repaired if that is
// wanted. If more rows are suspected than their list has room for, all are looked at, with what C has kept.
//
// Why it is fast enough: it is launched for a handful of rows, most often for none. A warp has a row; or, where rows
// are fewer than warps, several have one, each for some of its columns, and look at it themselves: nobody waits for
// anybody.
#pragma once
#include "apps/abft/product/exact_products.cuh"
#include "kernels/tsm2/emulated_gemm.cuh"
#include "kernels/ptx/dependent_launch.cuh"

namespace abft {

constexpr int kLocateThreads = 256;

// `Bounds` of thresholds.py, those of an element.
struct Bounds {
  double magnitude, spread, absolute, lost, products, rounding, rounding_absolute, largest_sum, largest;

  // Whether `found` is not what `exact` is but for rounding; all but this is without a factor of 2^exact.exponent.
  __device__ __forceinline__ bool exclude(double found, const Exact& exact, double walk) const {
    const int by = exact.exponent;
    double allowed = magnitude * exact.size + lost * exact.small + spread * walk + scaled(absolute, -by);
    const double most = size_of(exact.sum) + allowed;
    const bool may_overflow = exact.size >= scaled(largest_sum, -by) || most >= scaled(largest, -by);
    if (rounding > 0) allowed += rounding * most + rounding_absolute;
    const bool judged = is_finite(exact.sum) && (is_finite(found) || !may_overflow);
    return judged && !(size_of(scaled(found, -by) - exact.sum) <= allowed);
  }
};

// An element that is wrong.
struct Wrong {
  long long row, column;
  double found, value;
};

// A double as an element, rounded once: 16 bits come by way of a float that is cut off, and odd if anything was.
template <typename T>
__device__ __forceinline__ T rounded(double x) {
  if constexpr (sizeof(T) == 2) {
    const float cut = __double2float_rz(x);
    return tsm2::Element<T>::from(cut == x ? cut : __uint_as_float(__float_as_uint(cut) | 1));
  } else {
    return (T)x;
  }
}

// Σ ab of an element as the product's kernel adds it up, in this thread alone; NaN where that is not known.
template <typename T>
__device__ __forceinline__ double predicted(const Judged<T>& of, const tsm2::Order& order, long long row,
                                            long long column) {
  const auto a = [&](long long l) { return wide(of.A(row, l)); };
  const auto b = [&](long long l) { return wide(of.B(l, column)); };
  return tsm2::Predicted<T, decltype(a), decltype(b)>(order, row, a, b).sum();
}

// All elements before they are rounded to T, into `sums` (m × w).
template <typename T>
__global__ void __launch_bounds__(kLocateThreads, 2) predict(Judged<T> of, tsm2::Order order, double* sums) {
  const long long size = of.m * of.w;
  for (long long i = blockIdx.x * (long long)kLocateThreads + threadIdx.x; i < size;
       i += gridDim.x * (long long)kLocateThreads)
    sums[i] = predicted(of, order, i / of.w, i % of.w);
}

// The greatest power of two that is no larger than |x|; 0 of 0.
__device__ __forceinline__ double power_of(double x) {
  return __longlong_as_double(__double_as_longlong(x) & 0x7ff0000000000000ll);
}

// The greatest power of two of which x is a multiple, for an x that is not 0.
__device__ __forceinline__ double last_place(double x) {
  const long long bits = __double_as_longlong(x);
  return size_of(bits & 0xfffffffffffffll ? x - __longlong_as_double(bits & (bits - 1)) : x);
}

__device__ __forceinline__ double smaller(double x, double y) { return x < y ? x : y; }

// What an addition makes of what a sum is a multiple of: g → max(last, min(g, place)), with the last places of the sum
// and of the product that is added. Several in a row are one again.
struct Grain {
  double last = 0, place = __longlong_as_double(0x7ff0000000000000LL);

  __device__ __forceinline__ double of(double grain) const { return larger(last, smaller(grain, place)); }
  __device__ __forceinline__ Grain after(const Grain& first) const {
    return {larger(last, smaller(first.last, place)), smaller(first.place, place)};
  }
};
__device__ __forceinline__ Grain shuffle_up(const Grain& mine, int lanes) {
  return {simt::shuffle_up(mine.last, lanes), simt::shuffle_up(mine.place, lanes)};
}

// How far they walk at most: no partial sum is larger than Σ|ab|.
__device__ __forceinline__ double most_walk(long long k, double size, double products) {
  return sqrt((1 + products) * k) * size;
}

// How far the roundings of an element's sum walk (rounding_model.py), of which Σ|ab| is `size` and ρ is `products`; for
// the warp's first lane.
template <typename T>
__device__ __forceinline__ double walk_of(const Judged<T>& of, long long row, long long column, double size,
                                          double products) {
  // Where partial sums begin anew, but for those that never do; and the lowest and the highest since.
  constexpr long long kAnew[] = {32, 512};
  constexpr int kRuns = 3;
  constexpr bool kHalf = sizeof(T) == 2;
  const int lane = threadIdx.x % 32;
  double before[kRuns] = {}, lowest[kRuns] = {}, highest[kRuns] = {}, grains[kRuns] = {}, square = 0, finest = size;
  for (long long first = 0; first < of.k; first += 32) {
    const long long l = first + lane;
    const double product = l < of.k ? fma(wide(of.A(row, l)), wide(of.B(l, column)), 0.0) : 0.0;
    double sum = product;  // of this lane's product and those of the lanes before it
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const double others = simt::shuffle_up(sum, lanes);
      if (lane >= lanes) sum += others;
    }
    const double all = simt::shuffle(sum, 31), place = product != 0 ? last_place(product) : Grain().place;
    double of_step = 0;
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      if (first == 0 || (i + 1 < kRuns && first % kAnew[i] == 0)) {
        before[i] = lowest[i] = highest[i] = 0;
        grains[i] = Grain().place;
      }
      const double partial = before[i] + sum;
      double low = smaller(partial, lowest[i]), high = larger(partial, highest[i]);
#pragma unroll
      for (int lanes = 1; lanes < 32; lanes *= 2) {
        low = smaller(low, simt::shuffle_up(low, lanes)), high = larger(high, simt::shuffle_up(high, lanes));
      }
      const double power = power_of(larger(partial - low, high - partial));
      bool loses = true;
      if constexpr (kHalf) {
        Grain grain{power * 0x1p-23, place};
#pragma unroll
        for (int lanes = 1; lanes < 32; lanes *= 2) {
          const Grain others = shuffle_up(grain, lanes);
          if (lane >= lanes) grain = grain.after(others);
        }
        const Grain others = shuffle_up(grain, 1);
        const double nearest = lane > 0 ? others.of(grains[i]) : grains[i];
        loses = smaller(nearest, place) < power * 0x1p-23;
        grains[i] = simt::shuffle(grain.of(grains[i]), 31);
      }
      if (loses) of_step = fma(power, power, of_step);
      before[i] += all, lowest[i] = simt::shuffle(low, 31), highest[i] = simt::shuffle(high, 31);
    }
    if (product != 0) {
      const double power = power_of(product);
      square += of_step / kRuns + products * power * power;
      finest = place < finest ? place : finest;
    }
  }
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) {
    const double other = simt::shuffle_xor(finest, bits);
    finest = other < finest ? other : finest;
    square += simt::shuffle_xor(square, bits);
  }
  // Products of 16-bit elements are exact in float32, and so are sums of 24 bits of their last places.
  if (kHalf && size < 0x1p24 * finest) return 0;
  // Squares of what is very large or small are lost.
  return size > 0x1p-480 && size < 0x1p480 ? sqrt(square) : most_walk(of.k, size, products);
}

// What rows are looked at with.
template <typename Sum>
struct Look {
  const Sum *x, *y;
  double half_step;
  RowBounds bounds;
};

// Whether a row is suspected at a second look, too, for all lanes of a warp: one that is off by `off`, or, with `anew`,
// by what C has kept.
template <typename T, typename Sum>
__device__ __forceinline__ bool is_confirmed(const Judged<T>& of, const Look<Sum>& look, long long row, double off,
                                             bool anew) {
  const int lane = threadIdx.x % 32;
  double square = 0;
  for (long long l = lane; l < of.k; l += 32) {
    const double scaled = wide(of.A(row, l)) * (double)look.y[l];
    square = fma(scaled, scaled, square);
  }
  square = simt::warp_sum(square);
  if (anew) {
    double sum = 0, size = 0;
    for (long long l = lane; l < of.k; l += 32) sum = fma(wide(of.A(row, l)), -(double)look.x[l], sum);
    for (long long j = lane; j < of.w; j += 32) {
      const double c = wide(of.C(row, j));
      sum = fma(c, weight(j, look.half_step), sum);
      size += size_of(c);
    }
    const double lost = look.bounds.rounding * simt::warp_sum(size) + (double)of.w * look.bounds.rounding_absolute;
    off = larger(0.0, size_of(simt::warp_sum(sum)) - lost);
  }
  return disagrees(off, fma(look.bounds.row, sqrt(square), look.bounds.row_absolute));
}

// The first `room` that are wrong are listed. Two blocks a multiprocessor: for more, the compiler would spill.
template <typename T, typename Sum>
__global__ void __launch_bounds__(kLocateThreads, 2)
    locate(Judged<T> of, Look<Sum> look, FlaggedRows suspects, Bounds bounds, tsm2::Order order, bool correct,
           Wrong* wrong, unsigned long long room) {
  ptx::griddepcontrol_wait();
  const unsigned long long count = suspects.counts->flagged;
  if (count == 0) return;
  const int lane = threadIdx.x % 32;
  const bool every = count > (unsigned long long)suspects.capacity;
  const long long n = every ? of.m : (long long)count;
  // Where all rows are looked at, nobody else is to repair what C has kept.
  const int warps = gridDim.x * (kLocateThreads / 32), most = every || n > warps ? 1 : warps / (int)n;
  const int parts = most < of.w ? most : (int)of.w, teams = warps / parts;
  const int warp = blockIdx.x * (kLocateThreads / 32) + threadIdx.x / 32, team = warp / parts,
            part = warp - team * parts;
  if (team == teams) return;
  for (long long place = team; place < n; place += teams) {
    const long long row = every ? place : suspects.rows[place].row;
    if (!is_confirmed(of, look, row, every ? 0 : suspects.rows[place].off, every)) continue;
    if (lane == 0 && part == 0) atomicAdd(&suspects.counts->confirmed, 1ull);
    double expected = 0;
    for (long long column = part, i = 0; column < of.w; column += parts, ++i) {
      // Each lane has one of the next columns.
      if (i % 32 == 0) {
        const long long mine = column + lane * parts;
        expected = order.blocks > 0 && mine < of.w ? predicted(of, order, row, mine) : tsm2::unknown();
      }
      const double known = simt::shuffle(expected, (int)(i % 32));
      const bool is_known = known == known;
      T& element = of.C(row, column);
      const double found = wide(element);
      Exact exact;
      double walk = 0;
      if (!is_known) {
        exact = exact_of(of, row, column);
        if (sizeof(T) == 8 && !is_ordinary(exact.size)) {
          exact = scaled_exact_of(of.A, of.B, of.k, row, column, larger_exponent(found, bounds.absolute));
          walk = most_walk(of.k, exact.size, bounds.products);
        } else if (bounds.spread > 0) {
          walk = walk_of(of, row, column, exact.size, bounds.products);
        }
      }
      if (lane != 0) continue;
      const T right = rounded<T>(is_known ? known : exact.value);
      if (is_known ? found == wide(right) : !bounds.exclude(found, exact, walk)) continue;
      const unsigned long long listed = atomicAdd(&suspects.counts->wrong, 1ull);
      if (listed < room) wrong[listed] = {row, column, found, wide(right)};
      if (correct) element = right;
    }
  }
}

}  // namespace abft
