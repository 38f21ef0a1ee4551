import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from bench.common.precompile import call_ahead


def touch(path, number):
    if number % 3 == 2:
        raise ValueError("this fails")
    (path / str(number)).touch()


@pytest.mark.parametrize("pool", [None, "threads"])
def test_calls_are_made_and_what_fails_is_left(tmp_path, pool):
    arguments = [(tmp_path, i) for i in range(5)]
    assert call_ahead(touch, arguments, 2, ThreadPoolExecutor(2) if pool else None) == 4
    assert sorted(os.listdir(tmp_path)) == ["0", "1", "3", "4"]


@pytest.mark.parametrize(("arguments", "processes"), [([], 4), ([(None, 2)], 0)])
def test_nothing_to_do(arguments, processes):
    assert call_ahead(touch, arguments, processes) == 0


def end(code):
    os._exit(code)


def test_a_process_that_ends_is_no_end(capsys):
    assert call_ahead(end, [(1,), (2,)], 1) == 0
    assert "came to an end" in capsys.readouterr().out
