from importlib.util import find_spec

import numpy as np
import pytest

from tsapps.kernels.backend import gpus, why_no_gpu


def pytest_collection_modifyitems(items):
    missing = {}
    if not gpus():
        missing["gpu"] = f"needs a GPU: {why_no_gpu()}"
    if find_spec("cupy") is None:
        missing["compile"] = "needs the extra compile: CuPy is not installed"
    for item in items:
        for marker, reason in missing.items():
            if marker in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def rng():
    return np.random.default_rng(20261121)
