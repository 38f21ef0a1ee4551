"""choose_k on a GPU: the fits of TSKMeans there, one copy of X, and the scores of the CPU."""

import numpy as np
import pytest
from sklearn.datasets import make_blobs

from tsapps import TSKMeans, choose_k
from tsapps.apps.kmeans.data.device_data import DeviceData

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")

# The last number has another step.
KS = (2, 3, 5, 9, 70)


@pytest.mark.parametrize("place", [np.asarray, cupy.asarray], ids=["host", "gpu"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_every_fit_is_the_one_alone(dtype, place, monkeypatch):
    X = make_blobs(120_000, 40, centers=5, cluster_std=3, random_state=1)[0].astype(dtype)
    given, copied, copy = place(X), [], DeviceData._copied
    monkeypatch.setattr(DeviceData, "_copied", lambda data, to: copied.append(1) or copy(data, to))
    found = choose_k(given, KS, device="cuda", random_state=3, max_iter=20)
    assert len(copied) <= 1
    np.testing.assert_array_equal(cupy.asnumpy(given), X)  # X is not written
    for k, one in found.clusterings.items():
        alone = TSKMeans(k, device="cuda", random_state=3, max_iter=20).fit(given)
        np.testing.assert_array_equal(one.labels, cupy.asnumpy(alone.labels_))
        np.testing.assert_array_equal(one.centers, cupy.asnumpy(alone.cluster_centers_))
        assert one.inertia == alone.inertia_
    if dtype is np.float64:
        expected = choose_k(X, KS, device="cpu", random_state=3, max_iter=20)
        assert found.k == expected.k == 5
        for one, other in zip(found.scores, expected.scores, strict=True):
            for name in ("silhouette", "simplified_silhouette", "calinski_harabasz", "davies_bouldin"):
                assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-6)
