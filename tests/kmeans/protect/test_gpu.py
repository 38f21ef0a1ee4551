"""Protected fits on a GPU: faults are found and made good, and where there are none nothing changes by a bit."""

import numpy as np
import oracle
import pytest
from sklearn.datasets import make_blobs

from tsapps import TSKMeans
from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.open_engine import open_engine
from tsapps.apps.kmeans.protect.checks import MOST_AGAIN, FaultError
from tsapps.bench.abft.kmeans import engine_of
from tsapps.bench.kmeans import faults

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")


def faulty_cublas():
    """Return what makes an engine whose cuBLAS step has the seams of tsapps.bench.kmeans.faults."""
    return engine_of("cuda")


#: Few features by multiply-adds and by products, few clusters of short and of long rows, and many clusters.
SHAPES = [
    (30_001, 3, 2),
    (20_000, 4, 16),
    (20_000, 16, 16),
    (9_999, 40, 33),
    (3_000, 1000, 5),
    (3_000, 2500, 9),
    (20_000, 64, 200),
]


def data(n, d, k, dtype, away=0.0):
    X, _ = make_blobs(n, d, centers=k, cluster_std=2.0, center_box=(-3, 3), random_state=n)
    return (X + away).astype(dtype)


def opened(X, weights=None, engine="fused", **options):
    return open_engine(cupy.asarray(X), engine=engine, device="cuda", sample_weight=weights, **options)


def step_kind(X, k):
    """Return the class of what iterates; skip the test where that is the cublas engine."""
    with opened(X) as engine:
        engine.center(engine.data.moments()[0], k)
        if not engine.serves(k):
            pytest.skip("no kernel of ours serves this shape here: it goes to the cublas engine")
        return type(engine.step_for(k))


def fitted(engine, X, k, protect, **options):
    options = {"init": X[:k], "tol": 0, "max_iter": 12, "random_state": np.random.RandomState(0)} | options
    return lloyd.fit(engine, k, protect=protect, **options)


def assert_same(found, expected):
    """The same clustering to the bit."""
    np.testing.assert_array_equal(oracle.host(found.labels), oracle.host(expected.labels))
    np.testing.assert_array_equal(found.centers, expected.centers)
    np.testing.assert_array_equal(found.cluster_sizes, expected.cluster_sizes)
    assert found.inertia == expected.inertia
    assert found.n_iter == expected.n_iter


@pytest.mark.parametrize("options", [{}, {"max_iter": 100}, {"init": "k-means++"}, {"init": "random", "n_init": 2}])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_no_false_alarms_and_the_same_bits(n, d, k, dtype, weighted, options):
    X = data(n, d, k, dtype, away=50.0)
    weights = np.random.default_rng(1).random(n) + 0.1 if weighted else None
    plain, protected = (fitted(opened(X, weights), X, k, protect, **options) for protect in (False, True))
    assert protected.faults == 0
    assert_same(protected, plain)


@pytest.mark.parametrize("kind", ["cosine", "cublas", "elkan", "duplicates", "empty"])
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_no_false_alarms_of_other_kinds(n, d, k, kind):
    X = data(n, d, k, np.float32)
    options = {"cosine": {"metric": "cosine"}, "cublas": {"engine": "cublas"}, "elkan": {"bounds": True}}.get(kind, {})
    init = X[:k].copy()
    if kind == "duplicates":
        X = X[np.random.default_rng(0).integers(0, k + 1, n)]
    if kind == "empty":
        init[-2:] = 1e3
    plain, protected = (fitted(opened(X, **options), X, k, protect, init=init) for protect in (False, True))
    assert protected.faults == 0
    assert_same(protected, plain)


def lost_row(step):
    step.buffers.sums[0, -1] -= 1


def wrong_bit(step):
    step.buffers.sums[step.k - 1, 0] ^= 1 << 22


def wrong_labels(step):
    # More than are not checked in an iteration; wherever they are, none is checked in vain.
    labels = step.buffers.labels
    labels[: len(labels) // 2] = step.k - 1


def no_labels(step):
    step.buffers.labels[:] = -1


def one_label(step):
    """One of those that this iteration's check looks at."""
    labels, check = step.buffers.labels, step.check
    row = check._turn % check._stride + 7 * check._stride
    labels[row] = (int(labels[row]) + 1) % step.k


def inject(patch, kind, fault, when):
    """Have a fault come upon those passes of a kind of step of which `when(which)` is true, before `update_centers`."""
    bind, made = kind._bind_rows, 0

    def bound(step, centers):
        def wrong():
            nonlocal made
            if when(made):
                fault(step)
            made += 1

        return [*bind(step, centers), wrong]

    patch.setattr(kind, "_bind_rows", bound)


@pytest.mark.parametrize("fault", [lost_row, wrong_bit, wrong_labels, no_labels, one_label])
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
def test_a_fault_is_found_and_made_good(n, d, k, fault, monkeypatch):
    X = data(n, d, k, np.float32)
    expected = fitted(opened(X), X, k, protect=False)
    # The last of them may be of an iteration that is launched ahead, and comes to nothing.
    for when in (one for one in (0, 3, 4) if one < expected.n_iter):
        with monkeypatch.context() as patch:
            inject(patch, step_kind(X, k), fault, when.__eq__)
            found = fitted(opened(X), X, k, protect=True)
        assert found.faults == 1
        assert_same(found, expected)


@pytest.mark.parametrize("fault", [lost_row, wrong_bit, no_labels])
@pytest.mark.parametrize(("n", "d", "k"), [(50_000, 32, 16), (50_000, 70, 16)])
def test_a_fault_where_rows_are_left_out(n, d, k, fault, monkeypatch):
    spread = 4 * (d / 32) ** 0.5  # clusters overlap, and take tens of iterations
    X = make_blobs(n, d, centers=k, cluster_std=spread, center_box=(-3, 3), random_state=0)[0].astype(np.float32)
    expected = fitted(opened(X, bounds=True), X, k, protect=False, max_iter=60)
    assert expected.n_iter > 10
    for when in (expected.n_iter - 4, expected.n_iter - 2):
        with monkeypatch.context() as patch:
            inject(patch, step_kind(X, k), fault, when.__eq__)
            found = fitted(opened(X, bounds=True), X, k, protect=True, max_iter=60)
        assert found.faults == 1
        assert_same(found, expected)


def test_wrong_centers_are_found(monkeypatch):
    X = data(9_999, 40, 33, np.float32)
    expected = fitted(opened(X), X, 33, protect=False)
    engine, made = opened(X), 0
    from tsapps.apps.kmeans.protect.launch import StepCheck

    launch = StepCheck.launch

    def wrong(check, now, following, *place):
        nonlocal made
        if made == 2:
            following[5, 7] += 1
        made += 1
        launch(check, now, following, *place)

    monkeypatch.setattr(StepCheck, "launch", wrong)
    found = fitted(engine, X, 33, protect=True)
    assert found.faults == 1
    assert_same(found, expected)


def lowest_bit(centers, old):
    centers[1:2, :1].view(f"u{centers.itemsize}")[...] ^= 1


def exchanged(centers, old):
    centers[:2] = centers[:2][::-1].copy()


def reverted(centers, old):
    centers[1] = old[1] + 1


@pytest.mark.parametrize("change", [lowest_bit, exchanged, reverted])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
def test_centers_that_change_after_their_check_are_found(n, d, k, dtype, change, monkeypatch):
    from tsapps.apps.kmeans.protect.launch import StepCheck

    X = data(n, d, k, dtype)
    expected = fitted(opened(X), X, k, protect=False)
    step_kind(X, k)
    launch = StepCheck.launch
    # After the first check, one in the middle, and the last, behind which centers only come to the host.
    for when in sorted({0, expected.n_iter // 2, expected.n_iter - 1}):
        made = 0

        def wrong(check, now, following, *place, when=when):
            nonlocal made
            launch(check, now, following, *place)
            if made == when:
                change(following, now)
            made += 1

        with monkeypatch.context() as patch:
            patch.setattr(StepCheck, "launch", wrong)
            found = fitted(opened(X), X, k, protect=True)
        assert found.faults == 1, when
        assert_same(found, expected)


def test_first_centers_that_change_on_their_way_are_found(monkeypatch):
    from tsapps.apps.kmeans.engines.device_step import DeviceStep

    X = data(9_999, 40, 33, np.float32)
    expected = fitted(opened(X), X, 33, protect=False)
    begin, made = DeviceStep.begin, 0

    def wrong(step, centers):
        nonlocal made
        begin(step, centers)
        if made == 0:
            lowest_bit(step.buffers.centers[0], None)
        made += 1

    monkeypatch.setattr(DeviceStep, "begin", wrong)
    found = fitted(opened(X), X, 33, protect=True)
    assert found.faults == 1
    assert_same(found, expected)


def test_centers_that_change_on_their_way_to_the_host_are_found(monkeypatch):
    from tsapps.apps.kmeans.engines.device_step import DeviceStep

    X = data(9_999, 40, 33, np.float32)
    expected = fitted(opened(X), X, 33, protect=False)
    brought, made = DeviceStep._centers_on_host, 0

    def wrong(step, place):
        nonlocal made
        centers = brought(step, place)
        if made == 0:
            lowest_bit(centers, None)
        made += 1
        return centers

    monkeypatch.setattr(DeviceStep, "_centers_on_host", wrong)
    found = fitted(opened(X), X, 33, protect=True)
    assert found.faults == 1
    assert_same(found, expected)


@pytest.mark.parametrize("fault", faults.FAULTS)
def test_no_fault_gives_another_result_of_the_cublas_engine(fault, rng):
    for when in (*faults.WHEN, "any"):
        kind, dtype = (str(rng.choice(names)) for names in (faults.KINDS, ("float32", "float64")))
        found = faults.tried(faulty_cublas(), faults.FAULTS[fault], when, kind, dtype, rng)
        assert found in ("no effect", "healed", "repaired"), (when, kind, dtype)


@pytest.mark.parametrize("max_iter", [12, 100])
@pytest.mark.parametrize("part", [1, 1 << 30])
def test_sums_that_are_wrong_but_add_up_are_found_in_the_result(part, max_iter, monkeypatch):
    X = data(9_999, 40, 33, np.float32)
    expected = fitted(opened(X), X, 33, protect=False, max_iter=max_iter)
    from tsapps.apps.kmeans.engines.small_k_step import SmallKStep

    def wrong(step):
        step.buffers.sums[2:4, 3] += cupy.asarray([part, -part])

    inject(monkeypatch, SmallKStep, wrong, (4).__eq__)
    found = fitted(opened(X), X, 33, protect=True, max_iter=max_iter)
    assert found.faults == 1
    assert_same(found, expected)


def another_label(step):
    row = step.data.n_samples * 2 // 3
    step.buffers.labels[row] = (int(step.buffers.labels[row]) + 1) % step.k


def label_of_none(step):
    step.buffers.labels[step.data.n_samples - 1] = 100 if step.buffers.labels.dtype == np.int8 else step.k + 5


def sum_elsewhere(step):
    step.buffers.sums[:2, -2] += cupy.asarray([1 << 12, -(1 << 12)])


def row_elsewhere(step):
    """As a row that has the right label, but was added to another cluster."""
    n_reassigned = step.buffers.sums[1] // 7
    step.buffers.sums[0] += n_reassigned
    step.buffers.sums[1] -= n_reassigned


# Assignments that are no iteration's: after one iteration, which changes labels, that to the final centers, and its
# second computation; where no label changes any more, only this. A label of no cluster comes after the last: another
# pass would take its row away from where there are no sums.
RESULTS = [(fault, *of) for fault in (another_label, sum_elsewhere, row_elsewhere) for of in ((1, 0), (1, 1), (300, 0))]


@pytest.mark.parametrize(("fault", "max_iter", "when"), [*RESULTS, (label_of_none, 1, 1)])
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
def test_a_fault_of_the_result_is_found(n, d, k, fault, max_iter, when, monkeypatch):
    from tsapps.apps.kmeans.engines.device_step import DeviceStep

    X = data(n, d, k, np.float32)
    expected = fitted(opened(X), X, k, protect=False, max_iter=max_iter)
    step_kind(X, k)
    engine, made, assign = opened(X), 0, DeviceStep.assign

    def wrong(step, centers, **options):
        nonlocal made
        found = assign(step, centers, **options)
        if made == when:
            fault(step)
        made += 1
        return found

    monkeypatch.setattr(DeviceStep, "assign", wrong)
    found = fitted(engine, X, k, protect=True, max_iter=max_iter)
    assert found.faults == 1
    assert_same(found, expected)


@pytest.mark.parametrize("n_reassigned", [1, 5000])
def test_labels_that_the_second_computation_says_were_others_are_made_again(n_reassigned, monkeypatch):
    from tsapps.apps.kmeans.engines.device_step import DeviceStep

    X = data(9_999, 40, 33, np.float32)
    expected = fitted(opened(X), X, 33, protect=False, max_iter=1)
    made, assign = 0, DeviceStep.assign

    def wrong(step, centers, **options):
        nonlocal made
        made += 1
        found = assign(step, centers, **options)
        found.n_reassigned += n_reassigned if made == 2 else 0
        return found

    monkeypatch.setattr(DeviceStep, "assign", wrong)
    found = fitted(opened(X), X, 33, protect=True, max_iter=1)
    assert found.faults == 1
    assert_same(found, expected)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
def test_sums_are_compared_with_the_rows(n, d, k, dtype, weighted):
    X = data(n, d, k, dtype, away=50.0)
    rng = np.random.default_rng(n)
    weights = rng.random(n) + 0.1 if weighted else None
    with opened(X, weights) as engine:
        engine.center(engine.data.moments()[0], k)
        if not engine.serves(k):
            pytest.skip("no kernel of ours serves this shape here: it goes to the cublas engine")
        centers, step = X[:k].astype(engine.data.dtype) - oracle.host(engine.data.mean), engine.step_for(k)
        step.assign(centers, update=False)
        # The same bits, and nothing wrong.
        assert step.checked_inertia(centers) == (step.inertia(centers), None)
        sums = step.buffers.sums
        for _ in range(20):
            (a, b), j = rng.choice(k, 2, replace=False), int(rng.integers(d + 1))
            part = 1 << int(rng.integers(62))
            sums[int(a), j] += part
            sums[int(b), j] -= part
            _, fault = step.checked_inertia(centers)
            assert fault == "the cluster sums were not those of the labels"
            sums[int(a), j] -= part
            sums[int(b), j] += part
        assert step.checked_inertia(centers)[1] is None


def test_a_fault_that_persists_is_an_error(monkeypatch):
    X = data(9_999, 40, 33, np.float32)
    from tsapps.apps.kmeans.engines.small_k_step import SmallKStep

    inject(monkeypatch, SmallKStep, lost_row, lambda made: True)
    with pytest.raises(FaultError, match=f"iteration 1 went wrong {MOST_AGAIN + 1} times"):
        fitted(opened(X), X, 33, protect=True)


def test_an_engine_that_was_protected_can_be_used_without():
    X = data(9_999, 40, 33, np.float32)
    engine = opened(X)
    protected = fitted(engine, X, 33, protect=True)
    held = oracle.host(protected.labels).copy()
    plain = fitted(engine, X, 33, protect=False)
    np.testing.assert_array_equal(held, oracle.host(plain.labels))
    assert engine.step_for(33).check is None


def test_the_estimator():
    X = cupy.asarray(data(9_999, 40, 33, np.float32))
    models = [TSKMeans(33, random_state=0, engine="fused", protect=protect).fit(X) for protect in (False, True)]
    np.testing.assert_array_equal(*(oracle.host(model.labels_) for model in models))
    np.testing.assert_array_equal(*(oracle.host(model.cluster_centers_) for model in models))
    assert [model.faults_ for model in models] == [0, 0]
    with pytest.raises(ValueError, match="protect=True needs precision='exact'"):
        TSKMeans(33, engine="fused", precision="tf32", protect=True).fit(X)
