"""Element types of the benchmarks: their sizes, and their short names in the names of shapes."""

__all__ = ["DTYPE_OF", "ITEMSIZE", "SHORT_OF"]

#: Bytes of an element.
ITEMSIZE = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
#: Short names by dtype, and dtypes by short name.
SHORT_OF = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}
DTYPE_OF = {short: dtype for dtype, short in SHORT_OF.items()}
