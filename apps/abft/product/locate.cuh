// Locate and correct: re-checks flagged rows, recomputes the elements of confirmed rows, and repairs wrong elements.
//
//   A (m × k), B (k × w), C (m × w), flagged rows   →   the wrong elements of C, and their correct values
//
// thresholds.py defines the residual d_i of row i and the coefficients row and row_absolute; row_checksums.cuh defines
// q_i. The re-check confirms row i if |d_i| > row · q_i + row_absolute. An element of a confirmed row is tested in one
// of two ways:
//
// - If the accumulation order of C is known, the sum of the element is emulated bit for bit (emulated_gemm.cuh). The
//   element is wrong if its bits differ from the emulated bits.
// - Otherwise the element is recomputed nearly exactly (exact_products.cuh), together with Σ|ab|. The statistical
//   threshold also needs the deviation of the rounding error (rounding_model.py). The element is wrong if it differs
//   from the recomputed value by more than the bound of thresholds.py.
//
// Wrong elements are repaired on request. If more rows are flagged than the list holds, all rows of C are re-checked,
// with residuals computed from the stored C.
//
// Why it is fast enough: usually no row is flagged. One warp tests a row. If fewer rows are flagged than there are
// warps, a *team* of several warps tests a row, and the columns of the row are split among these warps. Each warp of a
// team repeats the re-check, so that no warp waits for another.
#pragma once
#include "apps/abft/product/exact_products.cuh"
#include "kernels/tsm2/emulated_gemm.cuh"
#include "kernels/ptx/dependent_launch.cuh"

namespace abft {

constexpr int kLocateThreads = 256;

// Error bounds of an element: the fields of `ErrorBounds` (thresholds.py) with these names. `products` is ρ of
// rounding_model.py.
struct ElementBounds {
  double magnitude, spread, absolute, lost, products, rounding, rounding_absolute, largest_sum, largest;

  // True if rounding cannot explain the difference between `found`, the element of C, and `exact`. `deviation` is that
  // of the element's rounding error. All values that are compared below are divided by 2^exact.exponent.
  __device__ __forceinline__ bool exclude(double found, const ExactElement& exact, double deviation) const {
    const int by = exact.exponent;
    double allowed = magnitude * exact.magnitude + lost * exact.small + spread * deviation + scaled(absolute, -by);
    const double most = absolute_value(exact.sum) + allowed;
    const bool may_overflow = exact.magnitude >= scaled(largest_sum, -by) || most >= scaled(largest, -by);
    if (rounding > 0) allowed += rounding * most + rounding_absolute;
    const bool tested = is_finite(exact.sum) && (is_finite(found) || !may_overflow);
    return tested && !(absolute_value(scaled(found, -by) - exact.sum) <= allowed);
  }
};

// A wrong element: its value in C (`found`), and the correct value.
struct WrongElement {
  long long row, column;
  double found, value;
};

// Rounds a double to T once. For 16-bit types, x is first truncated to a float; if that loses bits, the last bit of the
// float is set, which prevents double rounding.
template <typename T>
__device__ __forceinline__ T rounded(double x) {
  if constexpr (sizeof(T) == 2) {
    const float cut = __double2float_rz(x);
    return tsm2::Element<T>::from(cut == x ? cut : __uint_as_float(__float_as_uint(cut) | 1));
  } else {
    return (T)x;
  }
}

// Σ ab of an element as the kernel of the product computes it, emulated bit for bit by one thread. NaN if the emulation
// does not support a factor.
template <typename T>
__device__ __forceinline__ double emulated_sum(const Operands<T>& of, const tsm2::Order& order, long long row,
                                               long long column) {
  const auto a = [&](long long l) { return wide(of.A(row, l)); };
  const auto b = [&](long long l) { return wide(of.B(l, column)); };
  return tsm2::Predicted<T, decltype(a), decltype(b)>(order, row, a, b).sum();
}

// Emulates all elements of C, and writes their sums before rounding to T to `sums` (m × w, row-major).
template <typename T>
__global__ void __launch_bounds__(kLocateThreads, 2) emulate(Operands<T> of, tsm2::Order order, double* sums) {
  const long long size = of.m * of.w;
  for (long long i = blockIdx.x * (long long)kLocateThreads + threadIdx.x; i < size;
       i += gridDim.x * (long long)kLocateThreads)
    sums[i] = emulated_sum(of, order, i / of.w, i % of.w);
}

// Unit in the first place: the greatest power of two no larger than |x|; 0 for 0 and for denormals.
__device__ __forceinline__ double first_place(double x) {
  return __longlong_as_double(__double_as_longlong(x) & 0x7ff0000000000000ll);
}

// Unit in the last significant place: the greatest power of two of which x is a multiple; x is not 0.
__device__ __forceinline__ double last_place(double x) {
  const long long bits = __double_as_longlong(x);
  return absolute_value(bits & 0xfffffffffffffll ? x - __longlong_as_double(bits & (bits - 1)) : x);
}

__device__ __forceinline__ double smaller(double x, double y) { return x < y ? x : y; }

// A partial sum is a multiple of a power of two, g. The addition of a product changes g to max(floor, min(g, place)).
// `floor` is the unit in the last place of the new sum, and `place` is the last significant place of the product. The
// composition of two such updates has the same form.
struct PlaceUpdate {
  double floor = 0, place = __longlong_as_double(0x7ff0000000000000LL);

  __device__ __forceinline__ double of(double before) const { return larger(floor, smaller(before, place)); }
  __device__ __forceinline__ PlaceUpdate after(const PlaceUpdate& first) const {
    return {larger(floor, smaller(first.floor, place)), smaller(first.place, place)};
  }
};
__device__ __forceinline__ PlaceUpdate shuffle_up(const PlaceUpdate& update, int lanes) {
  return {simt::shuffle_up(update.floor, lanes), simt::shuffle_up(update.place, lanes)};
}

// Upper bound of the deviation of an element (rounding_model.py), from Σ|ab| (`magnitude`) and ρ (`products`). It holds
// because no partial sum is larger than Σ|ab|.
__device__ __forceinline__ double max_deviation(long long k, double magnitude, double products) {
  return sqrt((1 + products) * k) * magnitude;
}

// Deviation of an element's rounding error for an unknown summation order, computed by a warp and valid in its first
// lane. rounding_model.py defines the deviation and ρ, which is `products`. `magnitude` is Σ|ab|.
template <typename T>
__device__ __forceinline__ double rounding_deviation(const Operands<T>& of, long long row, long long column,
                                                     double magnitude, double products) {
  // kRuns sums of the same products: sum i restarts after kRestart[i] products, and the last sum never restarts. Each
  // sum has its value before the current 32 products, its lowest and highest partial sums since the restart, and the
  // power of two of which it is a multiple (`places`).
  constexpr long long kRestart[] = {32, 512};
  constexpr int kRuns = 3;
  constexpr bool kHalf = sizeof(T) == 2;
  const int lane = threadIdx.x % 32;
  double before[kRuns] = {}, lowest[kRuns] = {}, highest[kRuns] = {}, places[kRuns] = {}, square = 0,
         finest = magnitude;
  for (long long first = 0; first < of.k; first += 32) {
    const long long l = first + lane;
    const double product = l < of.k ? fma(wide(of.A(row, l)), wide(of.B(l, column)), 0.0) : 0.0;
    const double sum = simt::warp_running_sum(product);
    const double all = simt::shuffle(sum, 31), place = product != 0 ? last_place(product) : PlaceUpdate().place;
    double of_step = 0;
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      if (first == 0 || (i + 1 < kRuns && first % kRestart[i] == 0)) {
        before[i] = lowest[i] = highest[i] = 0;
        places[i] = PlaceUpdate().place;
      }
      const double partial = before[i] + sum;
      double low = smaller(partial, lowest[i]), high = larger(partial, highest[i]);
#pragma unroll
      for (int lanes = 1; lanes < 32; lanes *= 2) {
        low = smaller(low, simt::shuffle_up(low, lanes)), high = larger(high, simt::shuffle_up(high, lanes));
      }
      const double power = first_place(larger(partial - low, high - partial));
      bool loses = true;
      if constexpr (kHalf) {
        PlaceUpdate update{power * 0x1p-23, place};
#pragma unroll
        for (int lanes = 1; lanes < 32; lanes *= 2) {
          const PlaceUpdate others = shuffle_up(update, lanes);
          if (lane >= lanes) update = update.after(others);
        }
        const PlaceUpdate others = shuffle_up(update, 1);
        const double before_addition = lane > 0 ? others.of(places[i]) : places[i];
        loses = smaller(before_addition, place) < power * 0x1p-23;
        places[i] = simt::shuffle(update.of(places[i]), 31);
      }
      if (loses) of_step = fma(power, power, of_step);
      before[i] += all, lowest[i] = simt::shuffle(low, 31), highest[i] = simt::shuffle(high, 31);
    }
    if (product != 0) {
      const double power = first_place(product);
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
  // Products of 16-bit elements are exact in float32. Sums are exact too if 24 bits represent every partial sum.
  if (kHalf && magnitude < 0x1p24 * finest) return 0;
  // Outside this range of Σ|ab|, squares overflow or underflow, so the upper bound replaces the deviation.
  return magnitude > 0x1p-480 && magnitude < 0x1p480 ? sqrt(square) : max_deviation(of.k, magnitude, products);
}

// Arguments of the re-check: the checksum vectors x and y of B, the constant 1 / 2N in the weights (`half_step`), and
// the error bounds of a row. row_checksums.cuh defines x, y and N.
template <typename Sum>
struct RecheckArgs {
  const Sum *x, *y;
  double half_step;
  RowBounds bounds;
};

// True if |d_i| > row · q_i + row_absolute for this row (symbols: see the head of this file). A warp computes it and
// returns it to all lanes. With `recompute`, |d_i| is computed from the stored C, less the possible effect of C's
// rounding. Otherwise d_i is `residual`.
template <typename T, typename Sum>
__device__ __forceinline__ bool is_confirmed(const Operands<T>& of, const RecheckArgs<Sum>& recheck, long long row,
                                             double residual, bool recompute) {
  const int lane = threadIdx.x % 32;
  double square = 0;
  for (long long l = lane; l < of.k; l += 32) {
    const double scaled = wide(of.A(row, l)) * (double)recheck.y[l];
    square = fma(scaled, scaled, square);
  }
  square = simt::warp_sum(square);
  if (recompute) {
    double sum = 0, magnitude = 0;
    for (long long l = lane; l < of.k; l += 32) sum = fma(wide(of.A(row, l)), -(double)recheck.x[l], sum);
    for (long long j = lane; j < of.w; j += 32) {
      const double c = wide(of.C(row, j));
      sum = fma(c, weight(j, recheck.half_step), sum);
      magnitude += absolute_value(c);
    }
    const double lost =
        recheck.bounds.rounding * simt::warp_sum(magnitude) + (double)of.w * recheck.bounds.rounding_absolute;
    residual = larger(0.0, absolute_value(simt::warp_sum(sum)) - lost);
  }
  return disagrees(residual, fma(recheck.bounds.row, sqrt(square), recheck.bounds.row_absolute));
}

// Tests the flagged rows, counts their wrong elements, and writes up to `room` wrong elements to `wrong`. With
// `correct`, it repairs all wrong elements. The launch bounds request two blocks per multiprocessor; with more blocks,
// the compiler would spill registers.
template <typename T, typename Sum>
__global__ void __launch_bounds__(kLocateThreads, 2)
    locate(Operands<T> of, RecheckArgs<Sum> recheck, FlaggedRows flagged_rows, ElementBounds bounds, tsm2::Order order,
           bool correct, WrongElement* wrong, unsigned long long room) {
  ptx::griddepcontrol_wait();
  const unsigned long long count = flagged_rows.counts->flagged;
  if (count == 0) return;
  const int lane = threadIdx.x % 32;
  const bool every = count > (unsigned long long)flagged_rows.capacity;
  const long long n = every ? of.m : (long long)count;
  // If all rows are re-checked, only one warp tests a row. A second warp could compute the residual of the row while
  // the first warp repairs elements of the row.
  const int warps = gridDim.x * (kLocateThreads / 32), most = every || n > warps ? 1 : warps / (int)n;
  const int parts = most < of.w ? most : (int)of.w, teams = warps / parts;
  const int warp = blockIdx.x * (kLocateThreads / 32) + threadIdx.x / 32, team = warp / parts,
            part = warp - team * parts;
  if (team == teams) return;
  for (long long place = team; place < n; place += teams) {
    const long long row = every ? place : flagged_rows.rows[place].row;
    if (!is_confirmed(of, recheck, row, every ? 0 : flagged_rows.rows[place].residual, every)) continue;
    if (lane == 0 && part == 0) atomicAdd(&flagged_rows.counts->confirmed, 1ull);
    double expected = 0;
    for (long long column = part, i = 0; column < of.w; column += parts, ++i) {
      // Each lane emulates one of the next 32 columns.
      if (i % 32 == 0) {
        const long long lane_column = column + lane * parts;
        expected = order.blocks > 0 && lane_column < of.w ? emulated_sum(of, order, row, lane_column) : tsm2::unknown();
      }
      const double known = simt::shuffle(expected, (int)(i % 32));
      const bool is_known = known == known;
      T& element = of.C(row, column);
      const double found = wide(element);
      ExactElement exact;
      double deviation = 0;
      if (!is_known) {
        exact = exact_element(of, row, column);
        if (sizeof(T) == 8 && !is_ordinary(exact.magnitude)) {
          exact = scaled_exact_element(of.A, of.B, of.k, row, column, larger_exponent(found, bounds.absolute));
          deviation = max_deviation(of.k, exact.magnitude, bounds.products);
        } else if (bounds.spread > 0) {
          deviation = rounding_deviation(of, row, column, exact.magnitude, bounds.products);
        }
      }
      if (lane != 0) continue;
      const T right = rounded<T>(is_known ? known : exact.value);
      if (is_known ? found == wide(right) : !bounds.exclude(found, exact, deviation)) continue;
      const unsigned long long listed = atomicAdd(&flagged_rows.counts->wrong, 1ull);
      if (listed < room) wrong[listed] = {row, column, found, wide(right)};
      if (correct) element = right;
    }
  }
}

}  // namespace abft
