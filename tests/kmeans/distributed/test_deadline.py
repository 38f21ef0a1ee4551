"""Waiting for GPUs, on a clock that runs as told."""

from types import SimpleNamespace

import pytest

from tsapps.apps.kmeans.distributed import deadline
from tsapps.apps.kmeans.distributed.deadline import wait_for


@pytest.fixture
def clock(monkeypatch):
    """A clock on which asking takes 10 ms."""
    now, slept = [0.0], []

    def monotonic():
        now[0] += 0.01
        return now[0]

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=monotonic, sleep=sleep))
    return now, slept


class Never:
    aborted = 0

    def abort(self):
        self.aborted += 1


def test_what_is_done_is_not_waited_for(clock):
    wait_for(lambda: True, Never(), 0, "it")
    assert clock[1] == []


def test_the_host_sleeps_only_in_long_waits(clock):
    left = iter([False] * 4 + [True])
    wait_for(lambda: next(left), Never(), 0, "it")
    assert clock[1] == []
    left = iter([False] * 9 + [True])
    wait_for(lambda: next(left), Never(), 0, "it")
    assert len(clock[1]) == 4


@pytest.mark.parametrize(("work", "seconds"), [(0.0, 60), (2e12, 80)])
def test_a_wait_in_vain_is_ended(work, seconds, clock):
    all_reduce = Never()
    with pytest.raises(TimeoutError, match=rf"iteration 7 has not ended after {seconds} s: a GPU has failed"):
        wait_for(lambda: False, all_reduce, work, "iteration 7")
    assert all_reduce.aborted == 1
    assert seconds < clock[0][0] < seconds + 1


def test_ctrl_c_during_a_wait(clock):
    """Others may wait for a GPU that has failed."""
    all_reduce = Never()

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wait_for(interrupted, all_reduce, 0, "it")
    assert all_reduce.aborted == 1
