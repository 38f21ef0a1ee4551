"""A pytest plugin that puts our estimators in the place of scikit-learn's before its own tests import them."""

import sklearn.cluster
import sklearn.cluster._kmeans

from tsapps import TSKMeans, TSMiniBatchKMeans

OURS = {"KMeans": TSKMeans, "MiniBatchKMeans": TSMiniBatchKMeans}
for name, ours in OURS.items():
    setattr(sklearn.cluster, name, ours)
    setattr(sklearn.cluster._kmeans, name, ours)


def pytest_collection_finish(session):
    modules = {item.module for item in session.items}
    assert modules
    assert all(getattr(module, name) is ours for module in modules for name, ours in OURS.items())
