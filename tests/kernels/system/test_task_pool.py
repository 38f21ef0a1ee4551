"""Threads for generators: what their end waits for, and what it does not."""

import ast
import threading
from pathlib import Path

import numpy as np
import pytest
from host_cuda.machine import HostMachine

from tsapps.apps.kmeans.data.host_stream import stream_to_gpu
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.kernels.system.task_pool import TaskPool
from tsapps.matrix.stored import read_ahead

ROOT = Path(__file__).resolve().parents[3]


def test_results_and_errors():
    with TaskPool(2) as pool:
        found = [pool.submit(divmod, number, 3) for number in range(5)]
        wrong = pool.submit(divmod, 1, 0)
        assert [one.result() for one in found] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
        with pytest.raises(ZeroDivisionError):
            wrong.result()


def test_the_end_waits_for_what_runs_and_cancels_the_rest():
    begun, goes_on, ended = threading.Event(), threading.Event(), []

    def task():
        begun.set()
        goes_on.wait(10)
        ended.append(1)

    with TaskPool(1) as pool:
        first, second = pool.submit(task), pool.submit(task)
        begun.wait(10)
        threading.Timer(0.05, goes_on.set).start()
    assert ended == [1]
    assert first.done()
    assert second.cancelled()


def test_an_end_in_a_thread_of_the_pool_does_not_wait_for_itself():
    def blocks():
        with TaskPool(1) as pool:
            yield pool

    some = blocks()
    pool = next(some)
    pool.submit(some.close).result(10)


def streamed():
    return stream_to_gpu(HostMachine(), ArrayRows(np.arange(40.0).reshape(20, 2)), 3)


@pytest.mark.parametrize("blocks", [streamed, lambda: read_ahead(iter(np.arange(9.0).reshape(3, 3)))])
def test_closed_generators_join_no_thread(blocks, monkeypatch):
    # Garbage collection in a thread that starts or ends may hold the lock that `join` needs.
    some = blocks()
    next(some)
    monkeypatch.setattr(threading.Thread, "join", lambda *_: pytest.fail("a thread is joined"))
    some.close()


def test_no_generator_joins_threads():
    found = []
    for folder in ("apps", "kernels", "tsapps", "bench"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef):
                    own = list(ast.walk(node))
                    names = {one.id for one in own if isinstance(one, ast.Name)}
                    if any(isinstance(one, ast.Yield | ast.YieldFrom) for one in own) and "ThreadPoolExecutor" in names:
                        found.append(f"{path.relative_to(ROOT)}: {node.name}")
    assert found == []
