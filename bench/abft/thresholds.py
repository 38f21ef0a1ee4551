"""Ratio of the statistical threshold to actual rounding errors, by depth, type and distribution.

    python -m tsapps.bench.abft.thresholds --device cpu --k 64 --k 1024
    python -m tsapps.bench.abft.thresholds --device cuda

Calibrates for p and prints the ratio of root mean squares: allowed error over actual error of the device's sums before
rounding to 16 bits; "–" if no element is off. It also prints how many elements exceeded the threshold. (The campaign's
records hold the same ratio for k = 64.) If a GPU's sums are emulated bit for bit, the allowed error equals the actual
one and the ratio is 1.
"""

import argparse
import sys

import numpy as np

from tsapps.apps.abft.product import calibrate, exact_products, thresholds
from tsapps.bench.abft.campaign import COLUMNS_OF_C, DISTRIBUTIONS, DTYPES, P, draw
from tsapps.bench.abft.product import allowed_of, calibrated_at, over_rounding

__all__ = ["measure"]

# Number of multiply-adds per distribution; maximum rows.
_PRODUCTS, _MOST_ROWS = 1 << 25, 1 << 15


def measure(
    dtype: str, distribution: str, k: int, bounds: thresholds.ErrorBounds, device: int | None, seed: int
) -> tuple[float | None, int, int]:
    """Return the ratio, or None if no element is off; the number of elements above the threshold; and their total."""
    rng = np.random.default_rng(seed)
    rows = min(_MOST_ROWS, _PRODUCTS // (k * COLUMNS_OF_C))
    A, B = draw(distribution, (rows, k), dtype, rng), draw(distribution, (k, COLUMNS_OF_C), dtype, rng)
    off = abs(calibrate.sums_of(A, B, dtype, device) - exact_products.exact_rows(A, B)[0])
    allowed = allowed_of(A, B, dtype, bounds, device)
    beyond = off != allowed if bounds.bit_exact and device is not None else off > allowed
    return over_rounding(allowed, off), int(beyond.sum()), off.size


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="element type; may be repeated")
    parser.add_argument("--k", type=int, action="append", help="depth; may be repeated")
    parser.add_argument("--p", type=float, default=P, help="false-positive rate per element")
    parser.add_argument("--others", action="store_true", help="use the threshold for products of other libraries")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    device = 0 if options.device == "cuda" else None
    print(f"| type | k | e / u | {' | '.join(DISTRIBUTIONS)} | beyond |")
    print("|---|--:|--:|" + "--:|" * (len(DISTRIBUTIONS) + 1))
    for dtype in options.dtype or DTYPES:
        for k in options.k or (64, 256, 1024, 4096):
            calibrated = calibrated_at(k, dtype, device, p=options.p, seed=options.seed)
            own = not options.others
            error, bounds = calibrated.error(k, own=own), calibrated.bounds(k, COLUMNS_OF_C, own=own)
            found = [measure(dtype, one, k, bounds, device, options.seed + 1) for one in DISTRIBUTIONS]
            ratios = " | ".join("–" if ratio is None else f"{ratio:.1f}" for ratio, _, _ in found)
            beyond = f"{sum(n for _, n, _ in found)} of {sum(n for _, _, n in found):,}"
            print(f"| {dtype} | {k} | {error / thresholds.summed_unit(dtype):.2f} | {ratios} | {beyond} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
