"""`tsapps abft-inject`: reported faults, reproducible by seed, found by abft-verify."""

import json

import numpy as np
import pytest

from tsapps.errors import ExitCode


def bits_of(X):
    return np.unpackbits(np.ascontiguousarray(X).view(np.uint8))


def places_of(stdout):
    *elements, summary = map(json.loads, stdout.splitlines())
    assert summary["elements"] == len(elements)
    return [(one["row"], one["column"]) for one in elements]


@pytest.mark.parametrize(("fault", "most"), [("bit", 1), ("two-bits", 2), ("word", 32)])
def test_bits_of_one_element(succeed, blobs, fault, most):
    stdout = succeed("abft-inject", "blobs.npy", "--fault", fault, "--out", "y.npy", "--json")
    found = np.load("y.npy")
    assert 1 <= (bits_of(found) != bits_of(blobs)).sum() <= most
    assert [list(place) for place in places_of(stdout)] == np.argwhere(found.view("i4") != blobs.view("i4")).tolist()


@pytest.mark.parametrize("fault", ["bit", "two-bits", "word", "words", "burst", "tile", "rectangle"])
@pytest.mark.parametrize("order", ["c", "fortran", "swapped"])
def test_reports_the_changed_elements(succeed, blobs, fault, order):
    X = {"c": blobs, "fortran": np.asfortranarray(blobs), "swapped": blobs.astype(">f4")}[order]
    np.save("x.npy", X)
    stdout = succeed(
        "abft-inject", "x.npy", "--fault", fault, "--count", 3, "--seed", 5, "--out", "y.npy", "--json", "--force"
    )
    found = np.load("y.npy")
    changed = np.argwhere(found.view(np.int32) != blobs.view(np.int32))
    assert [list(place) for place in places_of(stdout)] == changed.tolist() != []
    again = succeed("abft-inject", "x.npy", "--fault", fault, "--count", 3, "--seed", 5, "--in-place", "--json")
    assert places_of(again) == places_of(stdout)
    same = np.load("x.npy")
    assert same.dtype == X.dtype
    np.testing.assert_array_equal(same.astype("<f4").view(np.int32), found.view(np.int32))
    other = succeed("abft-inject", "blobs.npy", "--fault", fault, "--seed", 6, "--out", "z.npy", "--json")
    assert places_of(other) != places_of(stdout)


def test_faults_are_found_and_repaired(succeed, stop, directory, blobs):
    right = (directory / "blobs.npy").read_bytes()
    succeed("abft-encode", "blobs.npy")
    table = succeed("abft-inject", "blobs.npy", "--in-place", "--seed", 3)
    assert "damaged  1 element\n" in table
    place = table.splitlines()[-1].split()[:3]
    assert stop("abft-verify", "blobs.npy").stdout.splitlines()[-1].split()[:3] == place
    succeed("abft-correct", "blobs.npy", "--in-place")
    assert (directory / "blobs.npy").read_bytes() == right


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "expected one of --out FILE.npy, to write a copy, and --in-place"),
        (["--out", "blobs.npy", "--force"], "blobs.npy: is DATA itself"),
        (["--out", "blobs.csv"], "expected a name that ends in .npy"),
    ],
)
def test_wrong_use(refuse, blobs, arguments, line):
    assert line in refuse(ExitCode.USAGE, "abft-inject", "blobs.npy", *arguments)
    assert "does not hold its elements as plain bytes" in refuse(
        ExitCode.USAGE, "abft-inject", "blobs.csv", "--in-place"
    )
    assert "no.npy: no such file" in refuse(ExitCode.USAGE, "abft-inject", "no.npy", "--in-place")
