"""
A protected matrix product
==========================

``abft.matmul`` checks a product while it is computed, and repairs the elements that are wrong.
"""

import matplotlib.pyplot as plt
import numpy as np

from tsapps import abft

rng = np.random.default_rng(0)
A, B = rng.standard_normal((4000, 256)), rng.standard_normal((256, 16))

found = abft.matmul(A, B)
f"{len(found.faults)} faults"

# %%
# A healthy machine makes no faults. To see one, let another program compute the product, with errors in three elements.

C = A @ B
C[123, 4] += 1e-6
C[2000, 7] = 0
C[3999, 15] *= -1

checked = abft.check_product(A, B, C)
[(fault.row, fault.column) for fault in checked.faults]

# %%
# Each row of C has checksums, predicted from A and B. A row whose residual exceeds the rounding error is recomputed.

figure, axis = plt.subplots(figsize=(8, 3.4), layout="constrained")
axis.semilogy(np.maximum(np.abs((C - A @ B).sum(axis=1)), 1e-17), ".", color="tab:red", label="before")
axis.semilogy(np.maximum(np.abs((checked.C - A @ B).sum(axis=1)), 1e-17), ".", color="tab:blue", label="after repair")
axis.set(xlabel="row of C", ylabel="error of the row's sum", ylim=(1e-18, 10))
axis.legend()

# %%
# On a GPU, the checksums are computed in the same kernel as the product, and cost a few per cent.
