import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tsapps.bench.common.precompile import call_ahead


def touch(path, number):
    if number % 3 == 2:
        raise ValueError("this fails")
    (path / str(number)).touch()


@pytest.mark.parametrize("pool", [None, "threads"])
def test_failed_calls_are_ignored(tmp_path, pool):
    arguments = [(tmp_path, i) for i in range(5)]
    assert call_ahead(touch, arguments, 2, ThreadPoolExecutor(2) if pool else None) == 4
    assert sorted(os.listdir(tmp_path)) == ["0", "1", "3", "4"]


@pytest.mark.parametrize(("arguments", "processes"), [([], 4), ([(None, 2)], 0)])
def test_no_calls(arguments, processes):
    assert call_ahead(touch, arguments, processes) == 0


def end(code):
    os._exit(code)


def test_a_dead_process_is_not_fatal(capsys):
    assert call_ahead(end, [(1,), (2,)], 1) == 0
    assert "a precompiling process died" in capsys.readouterr().out
