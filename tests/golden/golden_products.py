"""Golden cases of products and of checksums."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from golden_cases import DTYPES, SEED, Case, Place, host, numpy_type

__all__ = ["product_cases"]


def _operands(m: int, k: int, w: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([SEED, m, k, w])
    A, B = (rng.standard_normal(shape).astype(numpy_type(dtype)) for shape in ((m, k), (k, w)))
    return A, B


def products(m: int, k: int, w: int, dtype: str) -> Case:
    """Return the case of products of matrices that lie row by row, column by column and transposed, scaled and not."""

    def run(place: Place) -> dict[str, Any]:
        from tsapps import gram, matmul

        A, B = _operands(m, k, w, dtype)
        rows, columns, b = place.put(A), place.put(np.asfortranarray(A)), place.put(B)
        C, out = matmul(rows, b), place.put(np.ones((m, w), A.dtype))
        matmul(rows, b, alpha=0.5, beta=2.0, out=out)
        by_columns, transposed = matmul(columns, b), matmul(rows.T, C)
        return {"C": C, "added": out, "columns": by_columns, "transposed": transposed, "gram": gram(rows)}

    return Case(f"products {m}x{k}x{w} {dtype}", run)


def checked_products(m: int, k: int, w: int, dtype: str) -> Case:
    """Return the case of a checked product, and of what is found of the same with faults in it."""

    def run(place: Place) -> dict[str, Any]:
        from tsapps import abft

        A, B = (place.put(X) for X in _operands(m, k, w, dtype))
        product = abft.matmul(A, B)
        damaged = host(product.C).copy()
        damaged[m // 3, w // 2] = 100
        damaged[m - 1, 0] = np.inf
        found = abft.check_product(A, B, place.put(damaged), correct=True)
        faults = np.array([(one.row, one.column, one.found, one.value) for one in found.faults])
        counts = product.n_faults, product.suspected, found.n_faults, found.suspected
        return {"C": product.C, "counts": counts, "faults": faults, "repaired": found.C}

    return Case(f"checked products {m}x{k}x{w} {dtype}", run)


def calibrated() -> Case:
    """Return the case of the statistical threshold: rounding errors that are measured, and a product by them."""

    def run(place: Place) -> dict[str, Any]:
        from tsapps import abft

        found = abft.calibrate("float32", None if place.device == "cpu" else 0, rows=16)
        A, B = (place.put(X) for X in _operands(3_000, 256, 16, "float32"))
        product = abft.matmul(A, B, threshold=found)
        errors = [found.error(k, own=own) for k in (16, 300, 4_096) for own in (True, False)]
        return {"errors": errors, "C": product.C, "counts": (product.n_faults, product.suspected)}

    return Case("calibrated products float32", run)


def checksums(m: int, n: int, dtype: str, **options: Any) -> Case:
    """Return the case of sidecars of a file and of an array, and of what is found once they are damaged."""

    def run(place: Place) -> dict[str, Any]:
        from tsapps import abft

        A, _ = _operands(m, n, 1, dtype)
        sidecars = place.folder / "file.abft", place.folder / "array.abft"
        abft.write_sidecar(sidecars[0], abft.encode(place.matrix(A), device=place.device, **options))
        abft.write_sidecar(sidecars[1], abft.encode(place.put(A), **options))
        results: dict[str, Any] = {path.stem: path.read_bytes() for path in sidecars}
        sidecar = abft.read_sidecar(sidecars[0])
        for fault in ("bit", "word", "burst"):
            damaged = A.copy()
            abft.inject(damaged, fault, np.random.default_rng(SEED), size=64 if fault == "burst" else None)
            verdict = abft.verify(place.put(damaged), sidecar)
            results[f"{fault}: faults"] = np.array([tuple(one) for one in verdict.faults], np.uint64)
            results[f"{fault}: refused"] = np.array([tuple(one) for one in verdict.refused])
            if not verdict.refused:
                results[f"{fault}: corrected"] = abft.correct(place.put(damaged), sidecar)
                pieces = abft.repaired(place.matrix(damaged), sidecar)
                results[f"{fault}: repaired"] = b"".join(bytes(piece) for piece in pieces)
        return results

    return Case(" ".join([f"checksums {m}x{n} {dtype}", *(f"{key}={value}" for key, value in options.items())]), run)


def product_cases() -> Iterator[Case]:
    """Yield all cases of products and of checksums."""
    for dtype in DTYPES:
        for m, k, w in ((20_000, 4, 4), (6_000, 64, 16), (3_001, 300, 33), (500, 700, 100), (16, 5_000, 3)):
            yield products(m, k, w, dtype)
        for m, k, w in ((5_000, 64, 16), (3_001, 300, 33), (400, 500, 100)):
            yield checked_products(m, k, w, dtype)
        for m, n in ((1_100, 600), (4_096, 16), (77, 2_050)):
            yield checksums(m, n, dtype)
        yield checksums(1_000, 300, dtype, code="exact")
        yield checksums(1_000, 300, dtype, code="float", weights=3, block=256)
    yield calibrated()
