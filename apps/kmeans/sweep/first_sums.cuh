// Cluster sums of several fits after the first iteration's assignment, when every row is in the lists of every fit.
//
//   place_labels   blocks (x, fit): the labels of the rows in list x of a fit
//   add_all_rows   blocks (x, y): columns number y of the sums of the clusters of all fits side by side
//
// A warp takes 32 rows. It has their places in all fits, the first sum of the cluster of each, in shared memory:
//
//   row       fit 0   fit 1   …            16 bits each; a lane reads those of four fits at a time. After the last fit,
//    0       [ place | place | … ]         up to three places are those of a cluster that no fit has
//    1       [ place | place | … ]
//
// Why it is fast: an element of X is loaded and converted to fixed point once for all fits. For each fit, it then takes
// one addition to shared memory per limb, of which a multiprocessor makes 26 per clock, and about one instruction more.
// scatter_add_fits (update.cuh) loads and converts the element for each fit, and takes 37 instructions.
#pragma once
#include "apps/kmeans/sweep/update.cuh"

namespace kmeans {

// Writes the labels of rows that had none.
__global__ void __launch_bounds__(256) place_labels(const FitsToAdd fits) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const FitToAdd& fit = fits.at[blockIdx.y];
  const unsigned count = fits.counts[blockIdx.y * (fits.lists + 1) + blockIdx.x];
  const AmbiguousRow* const list = fit.entries + blockIdx.x * fits.capacity;
#pragma unroll 4
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) {
    const AmbiguousRow entry = list[i];
    fit.labels[entry.row] = first_center(entry.low, entry.high);
  }
  if (threadIdx.x == 0) atomicAdd(fit.n_reassigned, count);
}

// Fit i has labels labels[i · labels_apart] and on, and clusters first_cluster[i] and on of all `clusters`.
struct AllFits {
  const int* labels;
  unsigned long long* sums;
  long long labels_apart;
  int first_cluster[kMostFits];
  int count, clusters;
  int columns, log2_lanes;  // as of scatter_add
};

constexpr int kAllWarps = 16;  // of a block of add_all_rows

// Adds all n rows to the sums of their clusters in all fits. Shared memory has room for kSums sums per limb.
template <typename T, typename Work, int kDigits, bool kWeighted, int kSums>
__global__ void __launch_bounds__(32 * kAllWarps, 1)
    add_all_rows(const CenteredRows<T, Work> rows, const typename Integer<kDigits>::Scale* scales, unsigned n,
                 const AllFits fits) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  static_assert(kSums <= 1 << 16, "places have 16 bits");
  constexpr int kPitch = kMostFits + 4, kTogether = 4;  // elements of 8-byte vectors; rows that are loaded together
  using Places = unsigned short[kPitch];
  unsigned* const digits = simt::dynamic_shared<unsigned>();
  Places* const places = reinterpret_cast<Places*>(digits + kDigits * kSums) + threadIdx.x / 32 * 32;
  const int lane = threadIdx.x % 32, lanes = 1 << fits.log2_lanes, groups = 32 >> fits.log2_lanes;
  const int first = blockIdx.y * fits.columns;
  const int end = first + fits.columns <= rows.d + 1 ? first + fits.columns : rows.d + 1;
  const int last = end < rows.d ? end : rows.d;  // of features; column d has the weights
  const SharedSums<kDigits, kSums> here(fits.sums, digits, fits.clusters, rows.d + 1, first, fits.columns);
  const auto add_rows = [&](unsigned begin, int count) {
    const long long own = begin + lane;
    const auto weight = as_integer<Work>(kWeighted && lane < count ? rows.weights[own] : Work(1), scales[rows.d]);
    __syncwarp();  // the places of the rows before have been read
    for (int fit = fits.count; fit % 4 != 0; ++fit) places[lane][fit] = (unsigned short)here.place(fits.clusters);
#pragma unroll 4
    for (int fit = 0; fit < fits.count; ++fit) {
      const int label = lane < count ? fits.labels[fit * fits.labels_apart + own] : 0;
      const int place = here.place(fits.first_cluster[fit] + label);
      places[lane][fit] = (unsigned short)place;
      if (end > rows.d && lane < count) here.add(place, rows.d, weight);
    }
    __syncwarp();
    for (int i = lane >> fits.log2_lanes; i < count; i += kTogether * groups) {
      for (int column = first + (lane & (lanes - 1)); column < last; column += 2 * lanes) {
        // A lane adds two columns. If there is no second, it adds zero to the first, without a branch.
        const int columns[2] = {column, column + lanes < last ? column + lanes : column};
        typename Integer<kDigits>::Number numbers[kTogether][2];
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          const unsigned row = begin + (i + j * groups < count ? i + j * groups : 0);
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const Work value = centered<T, Work>(rows.X[row * rows.leading + columns[c]], rows.mean[columns[c]]);
            numbers[j][c] = as_integer<Work>(kWeighted ? rows.weights[row] * value : value, scales[columns[c]]);
          }
          if (columns[1] == column) numbers[j][1] = 0;
        }
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          if (i + j * groups >= count) break;
          const uint2* const of_row = reinterpret_cast<const uint2*>(places[i + j * groups]);
          for (int four = 0; four < (fits.count + 3) / 4; ++four) {
            const uint2 words = of_row[four];
#pragma unroll
            for (int fit = 0; fit < 4; ++fit) {
              const int place = (fit < 2 ? words.x : words.y) >> fit % 2 * 16 & 0xffff;
#pragma unroll
              for (int c = 0; c < 2; ++c) here.add(place, columns[c], numbers[j][c]);
            }
          }
        }
      }
    }
  };
  here.clear();
  constexpr unsigned kRows = 32 * kAllWarps;
  unsigned since = 0;
  for (long long begin = blockIdx.x * kRows; begin < n; begin += gridDim.x * kRows) {
    if (since + kRows > kFlush) {
      here.flush();
      since = 0;
    }
    since += kRows;
    const long long mine = begin + threadIdx.x / 32 * 32;
    if (mine < n) add_rows((unsigned)mine, n - mine < 32 ? (int)(n - mine) : 32);
  }
  here.flush();
}

}  // namespace kmeans
