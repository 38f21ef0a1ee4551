"""Product problems by sizes, layouts and alignment."""

from math import gcd

from tsapps.kernels.problem import ITEMSIZE, Layout, Problem

__all__ = ["layout", "problem"]


def layout(along, outer, depth, size, pad=0, base=16):
    """Return an operand layout with `pad` elements between its lines, starting at a multiple of `base`."""
    leading = (depth if along else outer) + pad
    return Layout(along, leading, gcd(base, leading * size), base)


def problem(m, k, w, dtype="float32", a_along=True, b_along=False, c="packed", pads=(0, 0), bases=(16, 16), gram=False):
    size = ITEMSIZE[dtype]
    a, b = layout(a_along, m, k, size, pads[0], bases[0]), layout(b_along, w, k, size, pads[1], bases[1])
    return Problem(m, k, w, dtype, a, b, gram, c)
