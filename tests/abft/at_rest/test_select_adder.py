"""The choice between NumPy and numba for the sums of words."""

import subprocess
import sys

import numpy as np
import pytest

from tsapps.apps.abft.at_rest import select_adder
from tsapps.apps.abft.at_rest.select_adder import COMPILED_FROM, adder
from tsapps.apps.abft.at_rest.word_sums import add_by_blas


@pytest.fixture
def fresh(monkeypatch):
    """No bytes were added in this process so far."""
    monkeypatch.setattr(select_adder, "_function", select_adder._Compiled())


def test_small_data_are_added_by_numpy(fresh, monkeypatch):
    compiled = pytest.importorskip("tsapps.apps.abft.at_rest.compiled_sums").add_compiled
    assert adder(COMPILED_FROM - 1) is add_by_blas
    assert adder(1) is compiled  # many small matrices count as a large one
    assert adder(1) is compiled
    monkeypatch.setattr(select_adder, "_function", select_adder._Compiled())
    assert adder(COMPILED_FROM) is compiled


def test_small_data_do_not_import_numba():
    code = "import sys; from tsapps import abft; import numpy; abft.encode(numpy.ones((9, 9)), code='exact')"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'numba' not in sys.modules"], check=True)


def test_without_numba(fresh, monkeypatch):
    monkeypatch.setattr(select_adder, "numba_version", lambda: None)
    monkeypatch.setitem(sys.modules, "tsapps.apps.abft.at_rest.compiled_sums", None)
    assert adder(COMPILED_FROM) is add_by_blas


def test_numba_that_cannot_be_imported(fresh, monkeypatch):
    monkeypatch.setattr(select_adder, "numba_version", lambda: "0.1")
    monkeypatch.setitem(sys.modules, "tsapps.apps.abft.at_rest.compiled_sums", None)
    select_adder.warn_once.cache_clear()
    with pytest.warns(UserWarning, match="numba cannot be used, so that checksums take longer: "):
        assert adder(COMPILED_FROM) is add_by_blas


def test_wrong_machine_code_is_not_used(fresh, monkeypatch):
    """Such as of a damaged file in the cache."""
    compiled_sums = pytest.importorskip("tsapps.apps.abft.at_rest.compiled_sums")

    def wrong(sums, words, left):
        add_by_blas(sums, words, left)
        sums[4, 77] ^= np.uint64(1)

    monkeypatch.setattr(compiled_sums, "add_compiled", wrong)
    select_adder.warn_once.cache_clear()
    with pytest.warns(UserWarning, match="the sums that numba compiled are wrong"):
        assert adder(COMPILED_FROM) is add_by_blas
