"""`tsapps tune`: the user's tuning table, measured on a GPU or by stand-ins for one."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tsapps.errors import ExitCode
from tsapps.kernels import devices
from tsapps.kernels import matmul as product
from tsapps.kernels import tune as tuning
from tsapps.kernels.blas import cublaslt
from tsapps.kernels.gpu_specs import KNOWN, live
from tsapps.kernels.plan import user_table as tables
from tsapps.kernels.plan.library_algorithm import LibraryAlgorithm
from tsapps.kernels.plan.mma import MmaPlan
from tsapps.kernels.plan.select import KEY, LIBRARY, configuration_of, key_of, tuned_table

PROBE = devices._probe
# A GPU without a shipped tuning table.
DEVICE = replace(KNOWN["H100"], name="Some H100")
OWN = ("--m", 4096, "--k", 4096, "--w", 8)
ONE = (*OWN, "--dtype", "float32", "--layout", "row")


@pytest.fixture(autouse=True)
def cache(directory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory / "cache"))


@pytest.fixture
def gpu(monkeypatch, stand_in_gpu):
    """A stand-in GPU on which the best predicted plan of every product takes 1 ms, and cuBLAS 2 ms."""

    def measured(cell, plans, device, index, report):
        report(f"{cell}: measured")
        return row_of(cell, plans[0])

    stand_in_gpu(DEVICE)
    monkeypatch.setattr(tuning, "live", lambda index: DEVICE)
    monkeypatch.setattr(tuning, "architecture", lambda index: "sm_90a")
    monkeypatch.setattr(tuning, "_compilers", lambda: ThreadPoolExecutor(1))
    monkeypatch.setattr(tuning, "_is_sound", lambda architectures, plan: True)
    monkeypatch.setattr(tuning, "_measured", measured)


def row_of(cell, plan):
    """Return a table row as `tune` writes it."""
    return key_of(cell.problem()) | configuration_of(plan) | {"ms": 1.0, "library_ms": 2.0}


def one_row(w=8, **changes):
    cell = tuning.own_cell(4096, 4096, w, "float32", along=True)
    return row_of(cell, tuning.promising(cell.problem(), DEVICE, 1)[0]) | changes


def own_file():
    return tables.user_path(DEVICE.name)


def write(text):
    own_file().parent.mkdir(parents=True, exist_ok=True)
    own_file().write_bytes(text if isinstance(text, bytes) else text.encode())


# --- Measuring -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [(), ("--reset",), ("--device", "cuda:1"), ("--device", "auto")])
def test_tune_needs_a_gpu(refuse, arguments):
    assert "CuPy is not installed" in refuse(ExitCode.NO_DEVICE, "tune", *arguments)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--device", "cpu"), "--device cpu: expected cuda or cuda:<number>: plans are measured on a GPU"),
        (("--device", "3"), "--device must be 'auto', 'cpu', 'cuda' or 'cuda:<number>', got '3'"),
        (("--m", 10, "--w", 4), "--k is missing: a single product needs --m, --k and --w"),
        ((*OWN, "--shape", "tsm2r"), "--shape applies to the default products only: --m, --k"),
        (("--m", 10, "--k", 900, "--w", 40), "C is 10 × 40; expected w ≤ m: give Cᵀ = Bᵀ · Aᵀ, with m and w exchanged"),
        (("--m", 900, "--k", 9, "--w", 65), "C is 900 × 65; expected w ≤ 64: cuBLAS computes all wider products"),
        (("--reset", "--shape", "tsm2r"), "--reset removes the whole table of the GPU: it takes no other option"),
        (("--reset", "--dry-run"), "--reset removes the whole table of the GPU: it takes no other option"),
    ],
)
def test_wrong_use(refuse, gpu, arguments, what):
    assert what in refuse(ExitCode.USAGE, "tune", *arguments)


def test_a_dry_run_without_a_gpu_lists_the_products(succeed, directory):
    lines = succeed("tune", "--dry-run", "--most", 5).splitlines()
    assert len(lines) == len(tuning.CELLS) + 1
    assert lines[0] == "tsm2r float64 20,480 × 20,480 × 1, A row-major: up to 5 plans"
    assert lines[-1] == f"{len(tuning.CELLS)} products, up to {5 * len(tuning.CELLS):,} plans"
    assert list(directory.iterdir()) == []


def test_a_dry_run_with_a_gpu_counts_the_plans(succeed, gpu):
    report = json.loads(succeed("tune", "--dry-run", "--shape", "tsmttsm", "--dtype", "float16", "--json"))
    cells = [cell for cell in tuning.CELLS if (cell.shape, cell.dtype) == ("tsmttsm", "float16")]
    assert report["device"] == DEVICE.name
    assert report["cells"] == len(report["products"]) == len(cells)
    assert report["plans"] == sum(len(tuning.promising(cell.problem(), DEVICE, 18)) for cell in cells)
    assert not own_file().exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--shape", "tsm2l"), lambda cell: cell.shape == "tsm2l"),
        (("--shape", "tsm2l", "--shape", "tsm2r"), lambda cell: cell.shape != "tsmttsm"),
        (("--dtype", "float64", "--layout", "col"), lambda cell: cell.dtype == "float64" and not cell.along),
    ],
)
def test_filters(succeed, gpu, arguments, expected):
    report = json.loads(succeed("tune", "--dry-run", "--json", *arguments))
    assert [one["product"] for one in report["products"]] == [str(cell) for cell in filter(expected, tuning.CELLS)]


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [((10**6, 900, 64), "tsm2r"), ((10**6, 64, 3), "tsm2l"), ((64, 10**6, 3), "tsmttsm"), ((2, 1, 1), "tsmttsm")],
)
def test_shape_of_a_single_product(sizes, shape):
    cell = tuning.own_cell(*sizes, "float32", along=False)
    assert cell.shape == cell.problem().shape == shape


# --- Tables --------------------------------------------------------------------------------------------------------


def test_the_table_is_written_and_used(succeed, gpu):
    problem = tuning.own_cell(4096, 4096, 8, "float32", along=True).problem()
    report = json.loads(succeed("tune", *ONE, "--json"))
    assert report["measured"] == json.loads(own_file().read_text()) == [one_row()]
    assert (report["path"], report["rows"], report["left_out"]) == (str(own_file()), 1, 0)
    assert [path.name for path in own_file().parent.iterdir()] == [own_file().name]
    plan = product.planned(problem, DEVICE)
    assert isinstance(plan, MmaPlan)
    assert configuration_of(plan).items() <= one_row().items()
    tables.keep(DEVICE.name, one_row(kernel=LIBRARY))
    assert product.planned(problem, DEVICE) == LIBRARY
    succeed("tune", "--reset")
    assert isinstance(product.planned(problem, DEVICE), MmaPlan)


def test_rows_with_the_same_key_are_replaced(succeed, gpu):
    narrow, old = one_row(w=1, ms=7.0), one_row(ms=9.0)
    write(json.dumps([narrow, old]))
    table = succeed("tune", *OWN, "--dtype", "float32")
    both = json.loads(own_file().read_text())
    assert both[:2] == [narrow, one_row()]
    assert [row["along"] for row in both] == [True, True, False]
    assert "products  2; fastest by kernels of tsapps: 2, by cuBLAS: 0\n" in table
    assert f"{own_file()}: 3 rows" in table


def test_quiet(run, gpu):
    done = run("tune", *ONE, "--quiet")
    assert (done.exit_code, done.output) == (0, "")
    assert own_file().exists()


def test_an_interruption_keeps_earlier_measurements(run, gpu, monkeypatch):
    measured, done = tuning._measured, []

    def third_fails(cell, *others):
        done.append(cell)
        if len(done) == 3:
            raise KeyboardInterrupt
        return measured(cell, *others)

    monkeypatch.setattr(tuning, "_measured", third_fails)
    result = run("tune", "--shape", "tsm2r", "--dtype", "float64")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "tsapps: interrupted\n")
    assert [(row["dtype"], row["w"]) for row in json.loads(own_file().read_text())] == [("float64", 1), ("float64", 2)]
    assert [path.name for path in own_file().parent.iterdir()] == [own_file().name]


def test_products_that_fail_are_skipped_with_a_warning(run, gpu, monkeypatch):
    measured = tuning._measured

    def no_memory(cell, *others):
        if cell.along:
            raise MemoryError("Out of memory allocating 9 bytes")
        return measured(cell, *others)

    monkeypatch.setattr(tuning, "_measured", no_memory)
    product_of_mine = "tsm2r float32 4,096 × 4,096 × 8, A row-major"
    warning = f"tsapps: warning: skipped {product_of_mine}: Out of memory allocating 9 bytes\n"
    done = run("tune", *OWN, "--dtype", "float32")
    assert (done.exit_code, done.stderr) == (0, warning)
    assert "products  1, and 1 skipped; fastest by kernels of tsapps: 1, by cuBLAS: 0\n" in done.stdout
    done = run("tune", *ONE)
    assert (done.exit_code, done.stderr) == (
        1,
        f"{warning}tsapps: no product could be measured, and no table was written: see the warnings\n",
    )


def test_plans_that_spill_are_not_measured(run, gpu, monkeypatch):
    cell = tuning.own_cell(4096, 4096, 8, "float32", along=True)
    first, second = tuning.promising(cell.problem(), DEVICE, 2)
    monkeypatch.setattr(tuning, "_is_sound", lambda architectures, plan: plan != first)
    assert run("tune", *ONE).exit_code == 0
    assert tables.own_table(DEVICE.name) == [row_of(cell, second)]
    done = run("tune", *ONE, "--most", 1)
    assert done.exit_code == 1
    assert ": all its plans spill registers on Some H100" in done.stderr


def test_a_gpu_that_is_too_old(run, gpu, monkeypatch):
    monkeypatch.setattr(tuning, "live", lambda index: KNOWN["V100"])
    done = run("tune", *ONE, "--quiet")
    assert done.exit_code == ExitCode.FAILURE
    assert done.stderr.startswith(
        "tsapps: no kernel of tsapps runs these products on V100 (compute capability 7.0); expected 8.0 or later"
    )
    assert done.stderr.count("\n") == 1
    assert not own_file().exists()


def test_ctrl_c_ends_the_compilers_at_once():
    script = """
import time
from tsapps.kernels import tune
tune.available_cores = lambda: 2
if __name__ == "__main__":
    try:
        with tune._compilers() as pool:
            for _ in pool.map(time.sleep, [0.2] * 3000):
                print("done", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # If the tests run in the background, Ctrl-C is ignored by default.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    for _ in range(8):
        assert process.stdout.readline() == "done\n"
    os.killpg(process.pid, signal.SIGINT)  # like a terminal, also signals the compilers
    stdout, stderr = process.communicate(timeout=30)
    assert stdout.splitlines()[-1] == "interrupted"
    assert (process.returncode, stderr) == (0, "")


# --- Malformed tables ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "is not a tuning table (Expecting value: line 1 column 1 (char 0))"),
        ('[{"shape": "tsm2r"', "is not a tuning table (Expecting ',' delimiter: line 1 column 19 (char 18))"),
        (b"\xff\xfe", "is not a tuning table ('utf-8' codec can't decode byte 0xff in position 0: invalid start byte)"),
        ("{}", "is not a tuning table (a dict, expected a list)"),
        ("[7]", "row 0 is 7, expected an object"),
        (json.dumps([one_row(), {"shape": "tsm2r"}]), "row 1 has no 'dtype' (made by another version of tsapps?)"),
        (json.dumps([one_row()]).replace("stages", "steps"), "row 0 has no 'stages' (made by another version"),
        (json.dumps([one_row(shape="gemm")]), "row 0 has shape 'gemm', expected one of tsm2r, tsm2l, tsmttsm"),
        (
            json.dumps([one_row(dtype=["f4"])]),
            "row 0 has dtype ['f4'], expected one of float64, float32, float16",
        ),
        (json.dumps([one_row(along=1)]), "row 0 has along 1, expected true or false"),
        (json.dumps([one_row() | {"w": "8"}]), "row 0 has w '8', expected a whole number, at least 1"),
        (json.dumps([one_row(stage=0)]), "row 0 has stage 0, expected a whole number, at least 1"),
        (json.dumps([one_row(blocks=1.5)]), "row 0 has blocks 1.5, expected a whole number, at least 1"),
        (json.dumps([one_row(algorithm=3)]), "row 0 has algorithm 3, expected an object"),
        (json.dumps([one_row(algorithm={"rank": 1})]), "row 0 has no 'own_orders' (made by another version"),
        (
            json.dumps([one_row(algorithm={"rank": 0, "own_orders": True})]),
            "row 0 has rank 0, expected a whole number, at least 1",
        ),
        (json.dumps([one_row(warps_m=None)]), "row 0 has warps_m None, expected a whole number, at least 1"),
    ],
)
def test_a_malformed_table_is_an_error_in_one_line(refuse, succeed, gpu, text, what):
    write(text)
    line = refuse(ExitCode.FAILURE, "tune", *ONE).removeprefix("tsapps: ").rstrip("\n")
    assert line.startswith(f"{own_file()}: {what}")
    assert line.endswith(": correct it, or remove it with tsapps tune --reset")
    with pytest.raises(ValueError, match="tsapps tune --reset"):
        tuning.user_table(DEVICE.name)
    assert line in succeed("info")
    assert json.loads(succeed("info", "--json"))["picks"]["cuda:0"]["error"] == line
    assert succeed("tune", "--reset") == f"removed  {own_file()}\n"
    assert tuning.user_table(DEVICE.name) == []


def test_rows_may_have_other_fields():
    write(json.dumps([one_row(comment="measured in winter")]))
    assert tables.own_table(DEVICE.name) == [one_row(comment="measured in winter")]


def test_user_rows_override_shipped_rows():
    shipped = tuned_table("NVIDIA H200")
    theirs = next(row for row in shipped if "kernel" in row)
    mine = one_row(**{name: theirs[name] for name in KEY})
    tables.keep("NVIDIA H200", mine)
    both = tables.user_table("NVIDIA H200")
    assert len(both) == len(shipped)
    assert mine in both
    assert theirs not in both


# --- Reset and info ------------------------------------------------------------------------------------------------


def test_reset_without_a_table(succeed, gpu):
    assert succeed("tune", "--reset") == f"removed  nothing: there is no {own_file()}\n"
    assert json.loads(succeed("tune", "--reset", "--json"))["removed"] is False


def test_info_shows_the_table_in_use(succeed, gpu, stand_in_gpu):
    def shown():
        rows = succeed("info").splitlines()
        return next(row for row in rows if row.startswith("cuda:0 tuned configurations  ")).split("  ")[-1]

    assert shown() == "none: plans are chosen by the model (see tsapps tune)"
    tables.keep(DEVICE.name, one_row())
    assert shown() == f"1 of yours, {own_file()}; for the rest the model"
    report = json.loads(succeed("info", "--json"))["picks"]
    assert report == {"cuda:0": {"path": str(own_file()), "own": 1, "error": None, "shipped": 0}}
    stand_in_gpu(replace(KNOWN["H200"], name="NVIDIA H200"))
    shipped = len(tuned_table("NVIDIA H200"))
    assert shown() == f"{shipped} shipped with tsapps"
    tables.keep("NVIDIA H200", one_row())
    own = tables.user_path("NVIDIA H200")
    assert shown() == f"1 of yours, {own}; for the rest {shipped} shipped with tsapps"


# --- On a GPU ------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_tuning_on_a_gpu(succeed, monkeypatch):
    cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")
    monkeypatch.setattr(devices, "_probe", PROBE)
    A, B = cupy.ones((4096, 4096), "f4"), cupy.ones((4096, 8), "f4")
    product.matmul(A, B)  # with the present tables
    assert product._prepared.cache_info().currsize > 0
    report = json.loads(succeed("tune", *ONE, "--most", 2, "--json"))
    device, problem = live(0), tuning.own_cell(4096, 4096, 8, "float32", along=True).problem()
    (row,) = report["measured"]
    assert tables.own_table(device.name) == [row]
    assert row["ms"] > 0 < row["library_ms"]
    assert product._prepared.cache_info().currsize == 0
    row.pop("algorithm", None)
    ranked = configuration_of(LibraryAlgorithm(2))["algorithm"] | {"version": cublaslt.version()}
    for pick in ({}, {"kernel": LIBRARY}, {"algorithm": ranked}):
        tables.keep(device.name, row | pick)
        plan = product.planned(problem, device)
        if pick.get("algorithm"):
            assert plan == LibraryAlgorithm(2)
        else:
            assert configuration_of(plan).items() <= (row | pick).items()
        assert (product.matmul(A, B) == 4096).all()
