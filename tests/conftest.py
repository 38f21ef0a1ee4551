import numpy as np
import pytest

from tsapps.kernels.backend import gpus, why_no_gpu


def pytest_collection_modifyitems(items):
    if gpus():
        return
    skip = pytest.mark.skip(reason=f"needs a GPU: {why_no_gpu()}")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture
def rng():
    return np.random.default_rng(20261121)
