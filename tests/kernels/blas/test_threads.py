"""Threads of BLAS are left as they were, whatever order calls end in; and what a forked process runs does not hang."""

import subprocess
import sys
import threading

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from tsapps import TSKMeans, abft
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.kernels.blas.threads import one_blas_thread, threads_kept

BLAS = ThreadpoolController().select(user_api="blas")


def threads():
    return [library.num_threads for library in BLAS.lib_controllers]


@pytest.fixture(autouse=True)
def four_threads():
    with BLAS.limit(limits=4):
        yield


def test_calls_that_end_in_the_order_that_they_began_in():
    before = threads()
    first, second = one_blas_thread(), one_blas_thread()
    first.__enter__()
    second.__enter__()
    assert threads() == [1] * len(before)
    first.__exit__(None, None, None)
    assert threads() == [1] * len(before)
    second.__exit__(None, None, None)
    assert threads() == before


def test_limits_of_others_are_put_back():
    before = threads()
    with threads_kept():
        BLAS.limit(limits=1)
        with one_blas_thread():
            pass
    assert threads() == before


def test_an_exception_puts_them_back():
    before = threads()
    with pytest.raises(KeyError), one_blas_thread():
        raise KeyError
    assert threads() == before


LATER = """
from threadpoolctl import ThreadpoolController
from tsapps.kernels.blas.threads import one_blas_thread

def threads():
    return {library.num_threads for library in ThreadpoolController().select(user_api="blas").lib_controllers}

with one_blas_thread():
    import numpy
    ThreadpoolController().limit(limits=3, user_api="blas")
    with one_blas_thread():
        print(threads())
        import scipy.linalg
        ThreadpoolController().limit(limits=3, user_api="blas")
        with one_blas_thread():
            print(threads())
    print(threads())
print(threads())
with one_blas_thread():
    print(threads())
"""


def test_libraries_that_are_loaded_later():
    # NumPy's is loaded within the first call, SciPy's within the second: their limits of 3 were set by others.
    command = [sys.executable, "-c", LATER]
    done = subprocess.run(command, capture_output=True, text=True, env={"OPENBLAS_NUM_THREADS": "4"})
    assert (done.stdout.split("\n")[:5], done.stderr) == (["{1}", "{1}", "{1}", "{3}", "{1}"], "")


X = np.random.default_rng(0).standard_normal((800, 8))


@pytest.mark.parametrize(
    "call",
    [
        lambda: TSKMeans(5, random_state=0, device="cpu").fit(X).predict(X),
        lambda: TSKMeans(5, random_state=0, device="cpu").fit(ArrayRows(X)).predict(ArrayRows(X)),
        lambda: TSKMeans(5, random_state=0, device="cpu", protect=True).fit(X).score(X),
        lambda: abft.encode(X),
    ],
    ids=["array", "blocks", "protected", "encode"],
)
def test_concurrent_calls_leave_them_as_they_were(call):
    before, failed = threads(), []

    def run():
        try:
            for _ in range(4):
                call()
        except Exception as error:  # noqa: BLE001 (raised below, in the test's own thread)
            failed.append(error)

    workers = [threading.Thread(target=run) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failed
    assert threads() == before


FORKED = """
import multiprocessing, numpy as np
from sklearn.cluster import KMeans
from tsapps import TSKMeans, TSMiniBatchKMeans
X = np.random.default_rng(0).standard_normal((5_000, 8))
KMeans(5, n_init=1, random_state=0).fit(X)
model = TSKMeans(5, random_state=0, device="cpu", init=X[:5]).fit(X)
labels = TSMiniBatchKMeans(5, random_state=0, device="cpu").fit(X).partial_fit(X[:900]).predict(X)

def child(pipe):
    found = TSMiniBatchKMeans(5, random_state=0, device="cpu").fit(X).partial_fit(X[:900]).predict(X)
    again = TSKMeans(5, random_state=0, device="cpu", init=X[:5]).fit(X)
    same = (again.labels_ == model.labels_).mean(), (found == labels).mean(), (model.predict(X) == model.labels_).mean()
    pipe.send((*same, np.isclose(model.score(X), -model.inertia_), model.transform(X).shape))

ours, theirs = multiprocessing.Pipe()
process = multiprocessing.get_context("fork").Process(target=child, args=(theirs,))
process.start()
assert ours.poll(60), "the child hangs"
print(*ours.recv())
process.join()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_forked_process_does_not_hang():
    command = [sys.executable, "-W", "ignore", "-c", FORKED]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={"OMP_NUM_THREADS": "2"}
    )
    assert done.returncode == 0, done.stderr
    fit, batches, predict, score, shape = done.stdout.split(" ", 4)
    assert float(fit) > 0.999
    assert float(batches) > 0.999
    assert float(predict) == 1
    assert score == "True"
    assert shape.strip() == "(5000, 5)"
