"""What a table is made of: cells, rows of what was measured, and the versions that they hold for."""

import pytest

from tsapps.kernels import matmul, tune
from tsapps.kernels.blas import cublaslt
from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.plan import user_table
from tsapps.kernels.plan.candidates import candidates
from tsapps.kernels.plan.library_algorithm import LibraryAlgorithm
from tsapps.kernels.plan.select import ALGORITHM, KEY, LIBRARY, configuration_of

CELL = tune.own_cell(10**6, 32, 32, "float32", along=True)
OURS, OTHER = candidates(CELL.problem(), KNOWN["H200"])[:2]
FIRST, SECOND = LibraryAlgorithm(1), LibraryAlgorithm(3, True)


@pytest.fixture(autouse=True)
def _version(monkeypatch):
    monkeypatch.setattr(cublaslt, "version", lambda: 130_100)


@pytest.mark.parametrize("along", [True, False])
@pytest.mark.parametrize(
    ("sizes", "a", "b", "c"),
    [
        ((5000, 600, 8), ("along", 600, 5000), ("across", 8, 600), ("packed", "aligned columns")),
        ((5000, 6, 8), ("along", 6, 5000), ("across", 8, 6), ("packed", "aligned columns")),
        ((6, 5000, 4), ("along", 5000, 6), ("along", 5000, 4), ("packed", "packed")),
        # A single column lies in either order.
        ((5000, 600, 1), ("along", 600, 5000), ("along", 600, 600), ("packed", "packed")),
    ],
)
def test_a_cells_operands_have_no_gaps(sizes, a, b, c, along):
    problem = tune.own_cell(*sizes, "float32", along=along).problem()
    assert (problem.m, problem.k, problem.w) == sizes
    for layout, (order, row_major, column_major) in ((problem.a, a), (problem.b, b)):
        assert layout.along_depth == ((order == "along") == along or (sizes[2] == 1 and layout is problem.b))
        assert layout.leading == (row_major if along else column_major)
        assert layout.base_alignment == 16
    assert problem.c == c[not along]


@pytest.mark.parametrize(
    ("ours", "theirs", "library", "picked", "ranked"),
    [
        (1.0, 2.0, 2.0, OURS, None),
        (1.0, 2.0, 0.99, OURS, None),  # no more than the noise
        (1.0, 2.0, 0.9, LIBRARY, None),
        (1.0, 0.9, 2.0, OURS, SECOND),
        (1.0, 0.99, 2.0, OURS, None),
        (1.0, 0.8, 0.9, LIBRARY, SECOND),
        (1.0, None, 2.0, OURS, None),  # none of them runs
    ],
)
def test_the_row_of_what_was_measured(ours, theirs, library, picked, ranked):
    times = {OTHER: 3.0, OURS: ours} | ({} if theirs is None else {FIRST: 2.5, SECOND: theirs})
    row = tune._row(CELL.problem(), times, library)
    assert tuple(row)[: len(KEY)] == KEY
    assert configuration_of(picked).items() <= row.items()
    assert (row["ms"], row["library_ms"]) == (ours, library)
    if ranked is None:
        assert ALGORITHM not in row
    else:
        assert row[ALGORITHM] == {**configuration_of(ranked)[ALGORITHM], "version": 130_100, "ms": theirs}
    assert user_table._what_is_wrong(row) == ""


def test_an_algorithm_holds_for_the_version_that_ranked_it():
    both = tune._row(CELL.problem(), {OURS: 1.0, FIRST: 0.5}, 2.0)
    alone = {name: both[name] for name in (*KEY, ALGORITHM)}
    plain = {name: both[name] for name in both if name != ALGORITHM}
    assert user_table.of_version([both, alone, plain], 130_100) == [both, alone, plain]
    for other in (130_101, None):
        assert user_table.of_version([both, alone, plain], other) == [plain, plain]


def test_the_version_is_asked_for_where_an_algorithm_was_faster_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    device, problem = KNOWN["H200"], CELL.problem()
    row = tune._row(problem, {OURS: 1.0, FIRST: 0.5}, 2.0)
    user_table.keep(device.name, row)
    assert matmul.planned(problem, device) == FIRST
    monkeypatch.setattr(cublaslt, "version", lambda: None)
    picked = matmul.planned(problem, device)
    assert configuration_of(picked).items() <= row.items()
    user_table.keep(device.name, {name: row[name] for name in row if name != ALGORITHM})
    monkeypatch.setattr(cublaslt, "version", lambda: pytest.fail("cublasLt is loaded for nothing"))
    assert matmul.planned(problem, device) == picked
