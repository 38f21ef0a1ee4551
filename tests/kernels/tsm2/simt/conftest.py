"""Kernels without tensor cores are built together, and launched so that few rows take several rounds."""

import pytest
from products import build_simt_together

from tsapps.kernels import simt_gemm


@pytest.fixture(scope="module", autouse=True)
def _built_together(request):
    """Build the kernels of a module's `PLANS` together."""
    build_simt_together(request.module.PLANS)


@pytest.fixture(scope="module", autouse=True)
def _few_blocks():
    """Launch one block per multiprocessor."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_ROWS_BLOCKS", "_COLUMNS_BLOCKS", "_SMALL_BLOCKS"):
            patch.setattr(simt_gemm, name, 1)
        yield
