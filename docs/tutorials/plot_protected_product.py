"""
A protected matrix product
==========================

``abft.matmul`` computes a product together with checksums. It finds the elements that a faulty processor computed
wrongly, and repairs them.
"""

from unittest import mock

import matplotlib.pyplot as plt
import numpy as np

from tsapps import abft
from tsapps.apps.abft.product import cpu, thresholds  # internal: only to make faults, and for the picture

# %%
# A healthy processor
# -------------------
#
# A is tall, B is narrow. The rows of A have different magnitudes, as in real data.

rng = np.random.default_rng(0)
A = rng.standard_normal((4000, 256), dtype=np.float32) * 10 ** rng.uniform(-2, 2, (4000, 1)).astype(np.float32)
B = rng.standard_normal((256, 16), dtype=np.float32)

checked = abft.matmul(A, B)
print(checked)

# %%
# A faulty processor
# ------------------
#
# Healthy hardware makes no faults, so this page makes them. On a CPU, ``abft.matmul`` computes the product and the
# checksums of its rows in one internal function. For a moment, it flips 40 random bits of the product.

multiply, seen = cpu.multiply, {}


def faulty_multiply(A, extended):
    """Return the product with A of B and of its check columns, with flipped bits in the columns of B."""
    product = multiply(A, extended)
    rng = np.random.default_rng(32)
    seen["injected"] = {place for _ in range(40) for place in abft.inject(product[:, :16], "bit", rng)}
    seen["product"] = product
    return product


with mock.patch.object(cpu, "multiply", faulty_multiply):
    found = abft.matmul(A, B, correct=False)
    repaired = abft.matmul(A, B)

print(f"{len(seen['injected'])} elements injected, {found.n_faults} found in {found.suspected} suspected rows")
for fault in found.faults[:4]:
    print(f"row {fault.row:4}, column {fault.column:2}: found {fault.found:.7g}, correct is {fault.value:.7g}")

# %%
# Every element that was found is one that was injected. What was missed are bits near the end of the fraction, whose
# errors are of the size that rounding may have.

places = {(fault.row, fault.column) for fault in found.faults}
missed = seen["injected"] - places
print("false positives:", len(places - seen["injected"]))

exact = A.astype(np.float64) @ B.astype(np.float64)
size = abs(A).astype(np.float64) @ abs(B).astype(np.float64)
for name, C in (("healthy", checked.C), ("faulty", found.C), ("repaired", repaired.C)):
    print(f"largest error of the {name:8} product, relative to |A||B|: {(abs(C - exact) / size).max():.1e}")

# %%
# Residuals and thresholds
# ------------------------
#
# The check has two steps.
#
# 1. Each row of C has checksums. The *residual* of a row is how far the sum of its elements is from the checksum. A row
#    is suspected if its residual exceeds what rounding can explain.
# 2. Suspected rows are computed again in float64, and each element is compared. Its threshold is proven:
#    (γ(k + 4) + 2⁻²¹) · \|A\|\|B\|, where γ(k) = k·u / (1 − k·u) and u = 2⁻²⁴.
#
# Above the diagonal, an error exceeds its threshold. An element between the two tests can escape: its error exceeds its
# own threshold, but not that of its row. Proven thresholds allow for the worst case, and usual rounding errors are some
# hundred times smaller.

bounds = thresholds.proven(256, 16, "float32")
sums, checks = seen["product"][:, :16].astype(np.float64), seen["product"][:, 16:].astype(np.float64)
residuals = abs(sums.sum(axis=1) - checks[:, 0])
row_thresholds = bounds.row * abs(checks).max(axis=1)
errors, element_thresholds = abs(found.C - exact), bounds.magnitude * size

figure, axes = plt.subplots(1, 2, figsize=(10, 6.6), layout="constrained")
suspected = sorted({row for row, _ in places})
wrong, unseen = (tuple(np.array(sorted(some), int).reshape(-1, 2).T) for some in (places, missed))
panels = (
    ("rows", residuals, row_thresholds, (suspected,), None),
    ("elements", errors, element_thresholds, wrong, unseen),
)
for axis, (name, of, limits, marked, within) in zip(axes, panels, strict=True):
    axis.loglog(limits.ravel(), of.ravel(), ".", markersize=2, alpha=0.4, color="tab:gray", label="rounding")
    axis.loglog(limits[marked], of[marked], "o", markersize=5, color="tab:red", label="found")
    if within is not None:
        axis.loglog(limits[within], of[within], "o", markersize=5, color="tab:blue", label="injected, not found")
    ends = np.array([limits.min(), limits.max()])
    axis.loglog(ends, ends, color="black", linewidth=1, label="threshold")
    axis.set(xlabel=f"threshold of the {name}", title=f"{name} of the faulty product", ylim=(1e-10, 1e8))
axes[0].set_ylabel("residual")
axes[1].set_ylabel("error")
axes[1].legend(loc="upper left", fontsize="small")
plt.show()

# %%
# A product that was computed elsewhere is checked in the same way: ``abft.check_product(A, B, C)``.
#
# On a GPU
# --------
#
# The arrays decide the device: pass CuPy or torch arrays that are on a GPU. If the product is tall and has up to 64
# columns, its kernel also computes the checksums, and reads A once. The call does not wait for the GPU; the first
# access to ``faults`` does.
#
# On both devices, ``tsapps abft-calibrate`` measures the rounding errors. Then ``threshold="statistical"`` finds errors
# that are some hundred times smaller.
