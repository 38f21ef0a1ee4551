// What becomes of a centre from one iteration to the next, for the kernels that make them: centers.cuh, a block a centre, and
// few_iterations.cuh, every block all of them.
//
// A centre far away would widen the bound of every row. Where all rows are within `reach` of the mean but for a few, a centre
// more than 4·reach from it is the nearest of none of the others, as long as another centre is within 2·reach: it is
// left out (its offset is −infinite), and rows beyond the reach are left to decide.cuh.
#pragma once
#include "apps/kmeans/nearest.cuh"

namespace kmeans {

// What the host learns of an iteration.
struct Outcome {
  int stop, empty;
  unsigned moved;
  int padding;
  double shift, potential;  // Σ ‖new c − c‖²; Σ w·(‖c‖² − 2 x·c), at the centres that the labels are of
};

// What one block found out about its centre.
struct OfCentre {
  double square, lost, shift, potential;
};

// One element of a centre to float16.
__device__ __forceinline__ void place(double c, float scale, ptx::Half* half, OfCentre& found) {
  const double scaled = c * scale;
  *half = ptx::to_half((float)scaled);
  const double lost = scaled - ptx::to_float(*half);
  found.square += scaled * scaled;
  found.lost += lost * lost;
}

__device__ __forceinline__ double most_of(int, double a, double b) { return b > a ? b : a; }

// Whether a centre of this square norm is left out, where `least` is the least of all.
__device__ __forceinline__ bool is_left_out(double square, double least, float reach) {
  const double far = 16.1 * reach * reach;  // norms of rows are of what was rounded
  // What is no number is far.
  return !(square <= far) && least <= far / 4;
}

// Of the largest square norm and loss of the centres that are not left out, and whether some are; `slabs`: whether centres lie
// in slabs.
__device__ __forceinline__ Extremes extremes_of(double square, double lost, bool some, float reach, bool slabs) {
  // Rounded up; an infinity stays one.
  const float norm = (float)(sqrt(square) * 1.000001), of_lost = (float)(sqrt(lost) * 1.000001);
  // Products past 2²⁷ would overflow in the epilogue, and a centre that is infinite in float16 has none; nor has −‖c‖²/2 of
  // a norm past 2¹⁵ room in slabs.
  const bool holds = of_lost < kInfinity && (!slabs || norm < (float)(1 << 15));
  const float within = holds ? (float)(1 << 27) / norm : -1.0f;
  return {norm, of_lost, (float)(square / 2 * 1.000001), some && reach < within ? reach : within};
}

}  // namespace kmeans
