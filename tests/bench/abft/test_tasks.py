"""Names and sizes of the tasks of tsapps.bench.abft."""

import pytest

from tsapps.bench.abft.tasks import CPU_TASKS, QUICK_GPU_TASKS, Task, task_named, tasks


def test_names():
    assert task_named("encode-512-1024-bf16") == Task("encode", "bfloat16", 512, 1024, None, ("both", "exact", "float"))
    assert task_named("verify-5-7-f64") == Task("verify", "float64", 5, 7, None, ("exact",))
    assert task_named("matmul-1000-16-64-f32") == Task("matmul", "float32", 1000, 16, 64, ("proven",))
    assert task_named("kmeans-1M-64-32-f16") == Task("kmeans", "float16", 1_000_000, 64, 32, ("protect",))
    for task in (*tasks(), *CPU_TASKS, *QUICK_GPU_TASKS):
        assert task_named(task.name) == task


@pytest.mark.parametrize(
    "name",
    [
        *("", "encode", "encode-5-f32", "encode-5-6-7-f32", "encode-0-5-f32", "verify-5-6-f8", "read-5-6-f32"),
        *("matmul-5-6-f32", "matmul-5-6-7-f32-col", "kmeans-5-6-f32", "kmeans-5-6-7-f32"),
    ],
)
def test_names_that_are_none(name):
    with pytest.raises(ValueError, match="expected encode-m-n-dtype, verify-m-n-dtype, matmul-m-n-k-dtype or kmeans-"):
        task_named(name)


@pytest.mark.parametrize(
    ("name", "n_bytes"),
    [
        ("encode-10-20-f64", 1600),
        ("matmul-1000-16-64-f32", 4 * (1000 * 64 + 64 * 16 + 1000 * 16)),
        ("kmeans-1000-64-32-f16", 2 * 64_000 + 4000),
    ],
)
def test_bytes(name, n_bytes):
    assert task_named(name).n_bytes == n_bytes
