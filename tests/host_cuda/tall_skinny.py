"""What tests of K-means and ABFT still import from here."""

import ml_dtypes
import numpy as np
from products import UNTOUCHED, result  # noqa: F401

DTYPES = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
#: The class that a kernel runs.
PRODUCTS = {"tall_skinny": "GemmMma", "tall_skinny_warpgroups": "GemmWgmma"}
