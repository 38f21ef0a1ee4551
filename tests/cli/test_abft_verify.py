"""`tsapps abft-verify`: detection, reports and exit codes."""

import json

import numpy as np
import pytest

from tsapps.errors import ExitCode


def lines_of(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_by_hand(succeed, stop, flip, directory):
    np.save("x.npy", np.array([[1.0, 2.0], [3.0, 4.0]]))
    succeed("abft-encode", "x.npy")
    assert "verdict  clean: every bit is unchanged" in succeed("abft-verify", "x.npy")
    # The sign bit of 3.0 = 0x4008…, in row 1, column 0: the last byte becomes 0xC0, the value −3.
    flip("x.npy", 128 + 16 + 7, 0x80)
    result = stop("abft-verify", "x.npy")
    assert result.stderr == ""
    table = [line.split() for line in result.stdout.splitlines()]
    assert ["row", "column", "byte", "found", "was"] in table
    assert ["1", "0", "16", "0xc008000000000000", "-3.0", "0x4008000000000000", "3.0"] in table
    element, summary = lines_of(stop("abft-verify", "x.npy", "--json"))
    assert element == {
        "what": "element",
        "input": str(directory / "x.npy"),
        "row": 1,
        "column": 0,
        "offset": 16,
        "found": "0xc008000000000000",
        "was": "0x4008000000000000",
        "found_value": -3.0,
        "was_value": 3.0,
    }
    assert (summary["what"], summary["clean"], summary["elements"], summary["regions"]) == ("summary", False, 1, 0)


def test_clean_as_json(succeed, directory, blobs):
    succeed("abft-encode", "blobs.npy")
    (summary,) = map(json.loads, succeed("abft-verify", "blobs.npy", "--json").splitlines())
    assert summary["clean"] is True
    assert summary["input"] == str(directory / "blobs.npy")
    assert (summary["n"], summary["d"], summary["dtype"], summary["bytes"]) == (600, 5, "float32", 12_000)


@pytest.mark.parametrize("kind", ["c", "fortran", "swapped", "npz", "fbin", "csv"])
def test_any_format(succeed, stop, blobs, directory, kind):
    def write(X):
        if kind == "npz":
            np.savez_compressed("x.npz", X=X)
        elif kind == "fbin":
            (directory / "x.fbin").write_bytes(np.array(X.shape, "<u4").tobytes() + X.tobytes())
        elif kind == "csv":
            np.savetxt("x.csv", X, delimiter=",", fmt="%.17g")
        else:
            orders = {"c": X, "fortran": np.asfortranarray(X), "swapped": X.astype(">f4")}
            np.save("x.npy", orders[kind])
        return f"x.{kind}" if kind in ("npz", "fbin", "csv") else "x.npy"

    name = write(blobs)
    succeed("abft-encode", name)
    succeed("abft-verify", name)
    damaged = blobs.copy()
    damaged[123, 4] += 1
    damaged[599, 0] = 0
    write(damaged)
    *elements, summary = lines_of(stop("abft-verify", name, "--json"))
    assert [(one["row"], one["column"]) for one in elements] == [(123, 4), (599, 0)]
    assert [one["found_value"] for one in elements] == [float(damaged[123, 4]), 0]
    assert [one["was_value"] for one in elements] == [float(blobs[123, 4]), float(blobs[599, 0])]
    assert summary["elements"] == 2


@pytest.mark.parametrize(
    ("dtype", "was", "bit", "found"),
    [
        ("f2", 0x7E01, 0, "0x7e00"),  # NaN, of another payload
        ("f4", 0x80000000, 31, "0x00000000"),  # −0 becomes 0
        ("f8", 0x0000000000000001, 1, "0x0000000000000003"),  # denormals
        ("f8", 0x7FF0000000000000, 62, "0x3ff0000000000000"),  # infinity becomes 1
        ("i1", 0x80, 7, "0x00"),
        ("u8", 0xFFFFFFFFFFFFFFFF, 63, "0x7fffffffffffffff"),
    ],
)
def test_all_bit_patterns_are_compared(succeed, stop, flip, dtype, was, bit, found):
    size = np.dtype(dtype).itemsize
    X = np.full((30, 7), was, f"<u{size}").view(dtype)
    np.save("x.npy", X)
    succeed("abft-encode", "x.npy")
    flip("x.npy", 128 + (11 * 7 + 3) * size + bit // 8, 1 << bit % 8)
    result = stop("abft-verify", "x.npy", "--json")
    (element, _) = lines_of(result)
    expected = (11, 3, (11 * 7 + 3) * size, found, f"0x{was:0{2 * size}x}")
    assert tuple(element[key] for key in ("row", "column", "offset", "found", "was")) == expected
    assert "NaN" not in result.stdout
    assert "Infinity" not in result.stdout


def test_bfloat16_in_safetensors(succeed, stop, flip, directory):
    safetensors = pytest.importorskip("safetensors.numpy")
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    X = np.arange(40, dtype=np.float32).reshape(8, 5).astype(bfloat16)
    safetensors.save_file({"bias": np.zeros(3, np.float32), "weight": X}, "x.safetensors")
    succeed("abft-encode", "x.safetensors:weight")
    flip("x.safetensors", -1, 0x80)  # the sign of the last element of the last tensor
    (element, _) = lines_of(stop("abft-verify", "x.safetensors:weight", "--json"))
    assert (element["row"], element["column"], element["found_value"], element["was_value"]) == (7, 4, -39, 39)


def test_a_table_shows_twenty_elements(succeed, stop):
    X = np.ones((4, 50_000), np.float32)
    np.save("x.npy", X)
    succeed("abft-encode", "x.npy")
    X[2, 777 : 777 + 45] = 2
    np.save("x.npy", X)
    table = stop("abft-verify", "x.npy").stdout
    assert "corrupted: 45 repairable elements" in table
    shown = [line.split()[:2] for line in table.splitlines() if line.endswith("1.0")]
    assert shown == [["2", str(777 + place)] for place in range(20)]
    assert "and 25 more (--json prints all)" in table
    *elements, _ = lines_of(stop("abft-verify", "x.npy", "--json"))
    assert len(elements) == 45


@pytest.mark.parametrize(
    ("shape", "dtype"), [((3000, 200), "f4"), ((5000, 6), "f8"), ((90, 4000), "f2"), ((3000, 7), "i1"), ((40, 9), "f8")]
)
def test_regions_cover_unrepairable_elements(succeed, stop, rng, shape, dtype):
    X = rng.integers(1, 100, shape).astype(dtype)
    np.save("x.npy", X)
    succeed("abft-encode", "x.npy")
    rows, columns = slice(shape[0] // 4, shape[0] // 2), slice(shape[1] // 4, shape[1] // 2)
    damaged = X.copy()
    damaged[rows, columns] = 0
    np.save("x.npy", damaged)
    *found, summary = lines_of(stop("abft-verify", "x.npy", "--json"))
    told = np.zeros(shape, bool)
    for one in found:
        if one["what"] == "element":
            told[one["row"], one["column"]] = True
        else:
            told[one["first_row"] : one["last_row"] + 1, one["first_column"] : one["last_column"] + 1] = True
    assert summary["regions"] == sum(one["what"] == "region" for one in found) > 0
    assert told[rows, columns].all()


def test_a_region_by_hand(succeed, stop, directory):
    """In 600 rows of 5,000 float32, a block is 512 rows of one column: three corrupted elements are not repairable."""
    X = np.ones((600, 5000), np.float32)
    np.save("x.npy", X)
    succeed("abft-encode", "x.npy")
    X[[3, 70, 500], 17] = 0
    np.save("x.npy", X)
    region, summary = lines_of(stop("abft-verify", "x.npy", "--json"))
    where = {"first_row": 0, "last_row": 511, "first_column": 17, "last_column": 17}
    assert region == {"what": "region", "input": str(directory / "x.npy")} | where
    assert (summary["elements"], summary["regions"]) == (0, 1)
    rows = [line.split("  ") for line in stop("abft-verify", "x.npy").stdout.splitlines()]
    assert rows[-1] == ["0 to 511", "17 to 17"]


def test_adjacent_regions_are_merged(succeed, stop):
    X = np.ones((600, 5000), np.float32)
    np.save("x.npy", X)
    succeed("abft-encode", "x.npy")
    X[100:104, 17:20] = 0
    X[100:104, 21] = 0
    X[550:553, 20] = 0
    np.save("x.npy", X)
    *found, _ = lines_of(stop("abft-verify", "x.npy", "--json"))
    names = ("first_row", "last_row", "first_column", "last_column")
    assert [tuple(one[name] for name in names) for one in found] == [
        (0, 511, 17, 19),
        (0, 511, 21, 21),
        (512, 599, 20, 20),
    ]


def test_the_float_code_alone(succeed, stop, blobs):
    succeed("abft-encode", "blobs.npy", "--code", "float")
    assert "within the rounding of the checksums" in succeed("abft-verify", "blobs.npy")
    damaged = blobs.copy()
    damaged[123, 4] = np.inf
    np.save("blobs.npy", damaged)
    element, summary = lines_of(stop("abft-verify", "blobs.npy", "--json"))
    assert (element["row"], element["column"]) == (123, 4)
    assert (element["found_value"], element["was_value"]) == ("inf", float(blobs[123, 4]))
    assert (summary["code"], summary["elements"]) == ("float", 1)


def test_quiet_prints_one_line_for_each_corrupted_file(succeed, stop, flip, blobs):
    succeed("abft-encode", "blobs.npy")
    assert succeed("abft-verify", "blobs.npy", "--quiet") == ""
    flip("blobs.npy", 200)
    result = stop("abft-verify", "blobs.npy", "--quiet")
    assert result.stdout == ""
    assert result.stderr == ("tsapps: blobs.npy: corrupted: 1 repairable element, 0 regions that cannot be repaired\n")


@pytest.mark.parametrize("byte", [3, 40, -1])
def test_a_damaged_sidecar_is_reported_as_such(succeed, stop, flip, directory, blobs, byte):
    succeed("abft-encode", "blobs.npy")
    flip("blobs.npy.abft", byte)
    result = stop("abft-verify", "blobs.npy")
    assert result.stdout == ""
    assert result.stderr.startswith("tsapps: the sidecar, not the matrix: blobs.npy.abft: ")
    assert result.stderr.count("\n") == 1
    (line,) = lines_of(stop("abft-verify", "blobs.npy", "--json"))
    assert (line["what"], line["sidecar"]) == ("sidecar", str(directory / "blobs.npy.abft"))


def test_rejects_missing_files(refuse, blobs):
    assert "no.npy: no such file" in refuse(ExitCode.USAGE, "abft-verify", "no.npy")
    line = refuse(ExitCode.USAGE, "abft-verify", "blobs.npy")
    assert "blobs.npy.abft: no such file" in line
    assert "tsapps abft-encode" in line


def test_rejects_a_sidecar_of_another_matrix(succeed, refuse, blobs):
    np.save("other.npy", blobs[:10])
    succeed("abft-encode", "other.npy")
    line = refuse(ExitCode.FAILURE, "abft-verify", "blobs.npy", "--sidecar", "other.npy.abft")
    assert "is 600 × 5 float32, and its sidecar is of a matrix of 10 × 5 float32" in line


@pytest.fixture
def several(succeed, flip, directory):
    """Write files named by the expected verdict; "a" and "b" are clean."""
    for name in ("a", "b", "flipped", "sidecar", "lost", "truncated"):
        np.save(f"{name}.npy", np.arange(600.0).reshape(100, 6))
        succeed("abft-encode", f"{name}.npy")
    flip("flipped.npy", 200)
    flip("sidecar.npy.abft", 40)
    (directory / "lost.npy.abft").unlink()
    (directory / "truncated.npy").write_bytes((directory / "truncated.npy").read_bytes()[:-8])
    return directory


def told(result):
    """Return the verdict in each table, and the file named in each line on stderr."""
    verdicts = [line.split()[1].rstrip(":") for line in result.stdout.splitlines() if line.startswith("verdict")]
    lines = result.stderr.splitlines()
    assert all(line.startswith("tsapps: ") for line in lines)
    return verdicts, [next(name for name in NAMES if f"{name}.npy" in line) for line in lines]


NAMES = ("flipped", "sidecar", "lost", "truncated", "none", "a", "b")


@pytest.mark.parametrize(
    ("names", "code", "verdicts", "errors"),
    [
        ("a b", 0, ["clean", "clean"], []),
        ("a a", 0, ["clean", "clean"], []),
        ("flipped a", 3, ["corrupted", "clean"], []),
        ("a flipped b", 3, ["clean", "corrupted", "clean"], []),
        ("sidecar a", 3, ["clean"], ["sidecar"]),
        ("none a", 2, ["clean"], ["none"]),
        ("a lost b", 2, ["clean", "clean"], ["lost"]),
        ("truncated a", 1, ["clean"], ["truncated"]),
        ("truncated none", 1, [], ["truncated", "none"]),
        ("none truncated", 2, [], ["none", "truncated"]),
        ("none truncated flipped lost", 3, ["corrupted"], ["none", "truncated", "lost"]),
    ],
)
def test_several_files(run, several, names, code, verdicts, errors):
    files = [f"{name}.npy" for name in names.split()]
    result = run("abft-verify", *files)
    assert result.exit_code == code, result.output
    assert told(result) == (verdicts, errors)
    quiet = run("abft-verify", "-q", *files)
    corrupted = [name for name in names.split() if name == "flipped"]
    assert (quiet.exit_code, quiet.stdout) == (code, "")
    assert sorted(told(quiet)[1]) == sorted([*errors, *corrupted])


def test_several_files_as_json(run, several):
    result = run("abft-verify", "--json", "a.npy", "flipped.npy", "sidecar.npy", "none.npy", "b.npy")
    assert result.exit_code == ExitCode.CORRUPTION
    found = [(line["what"], line["input"]) for line in lines_of(result)]
    expected = [("summary", "a"), ("element", "flipped"), ("summary", "flipped"), ("sidecar", "sidecar")]
    expected += [("error", "none"), ("summary", "b")]
    assert found == [(what, str(several / f"{name}.npy")) for what, name in expected]
    error = lines_of(result)[4]
    assert (error["code"], error["message"]) == (ExitCode.USAGE, "none.npy: no such file: check the path")


def test_sidecar_option_needs_a_single_file(refuse, several):
    line = refuse(ExitCode.USAGE, "abft-verify", "a.npy", "b.npy", "--sidecar", "a.npy.abft")
    assert "--sidecar a.npy.abft: holds the checksums of one DATA, but 2 are given" in line
