"""Records for tests of tsapps.bench.report: one of each kind, whose fields can be replaced."""

import json

COMMON = {
    "engine": "tsapps",
    "device": "NVIDIA H200",
    "versions": {"tsapps": "0.1.0"},
    "commit": "0123456789abcdef",
    "date": "2026-11-28",
}
RECORDS = {
    "ladder": {
        "rung": "register_tile",
        "title": "register tile",
        "dtype": "float32",
        "layout": "row",
        "m": 1000,
        "n": 1000,
        "k": 1000,
        "ms": 2.0,
        "library_ms": 1.0,
        "floor_ms": 0.5,
        "speedup_serial": 1000.0,
        "efficiency": 0.5,
    },
    "gemm": {
        "shape": "tsm2r",
        "dtype": "float32",
        "layout": "row",
        "kernel": "tall_skinny",
        "m": 20480,
        "k": 20480,
        "w": 16,
        "ms": 0.5,
        "library_ms": 1.0,
        "floor_ms": 0.4,
    },
    "gemm-untuned": {
        "shape": "tsm2r",
        "dtype": "float32",
        "layout": "row",
        "m": 20480,
        "k": 20480,
        "w": 16,
        "tuned_ms": 0.5,
        "untuned_ms": 0.625,
        "untuned_sm80_ms": 1.0,
        "library_ms": 1.0,
    },
    "kmeans": {"n": 1000, "d": 16, "k": 8, "dtype": "float32", "iter_ms": 1.0, "fit_ms": 20.0, "floor_ms": 0.5},
    "kmeans-batched": {
        "b": 32,
        "n": 1000,
        "d": 16,
        "k": 8,
        "dtype": "float32",
        "iter_ms": 1.0,
        "fit_ms": 20.0,
        "floor_ms": 0.5,
    },
    "kmeans-small": {"n": 1000, "d": 16, "k": 8, "dtype": "float32", "fit_ms": 6.0},
    "kmeans-data": {
        "n": 1000,
        "d": 16,
        "k": 8,
        "dtype": "float32",
        "data": "zipf",
        "fit_ms": 10.0,
        "seeded_fit_ms": None,
        "wrong": 0.0,
    },
    "abft": {
        "job": "matmul",
        "code": "proven",
        "dtype": "float64",
        "m": 1000,
        "n": 16,
        "k": 64,
        "ms": 1.1,
        "floor_ms": 0.9,
        "library_ms": None,
        "unprotected_ms": 1.0,
    },
    "abft-campaign": {
        "target": "at-rest",
        "code": "exact",
        "dtype": "float32",
        "distribution": "normal",
        "fault": "bit",
        "m": 8,
        "n": 1024,
        "trials": 200,
        "detected": 199,
        "located": 198,
        "repaired": 197,
        "miscorrected": 1,
        "harmless": 2,
        "certain": 100,
        "certain_detected": 100,
        "certain_repaired": 99,
        "clean": 5000,
        "false_alarms": 3,
    },
    "paper": {
        "run": "bandwidth",
        "baseline": "cublas",
        "dtype": "float32",
        "m": 10240,
        "k": 10240,
        "n": 4,
        "ms": 1.0,
        "baseline_ms": 2.0,
        "speedup": 2.0,
        "gbs": 3000.0,
        "baseline_gbs": 1500.0,
        "peak_gbs": 5000.0,
        "paper_speedup": [1.1, 1.5, 3.0],
        "paper_points": [10.0, None, 40.0],
        "paper_device": "Tesla K40c",
    },
    "first-call": {"kernel": "tall_skinny", "stage": "compile", "ms": 782.5, "nested": {"a": [1, 2]}, "note": None},
}


def record_of(what, /, **fields):
    """Return a record of a kind; `fields` replace its fields."""
    return {"what": what, **COMMON, **RECORDS[what], **fields}


def write_records(path, *records):
    """Write a file of records, and its directory; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(records))
    return path
