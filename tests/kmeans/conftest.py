import pytest
from sklearn.datasets import load_digits, load_iris, load_sample_image, make_blobs


@pytest.fixture(scope="session")
def data_sets():
    """Real and made data by name, float64, with k to cluster it into."""
    return {
        "digits": (load_digits().data, 10),
        "china": (load_sample_image("china.jpg").reshape(-1, 3) / 255, 16),
        "iris": (load_iris().data, 3),
        "blobs": (make_blobs(3000, 8, centers=7, random_state=1)[0], 7),
    }
