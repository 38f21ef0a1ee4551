"""Available memory: the least of what the machine, control groups and resource limits leave."""

import os
import subprocess
import sys

import pytest

from tsapps.kernels.system.host_memory import available_host_memory

MIB = 1 << 20
MOUNTS = {
    1: "35 31 0:32 {root} {point} rw,nosuid,relatime shared:9 - cgroup cgroup rw,memory\n",
    2: "30 23 0:27 {root} {point} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
}


@pytest.fixture
def tree(tmp_path):
    """Write /proc of a machine with 8 GiB available, and groups of a version with files by their paths."""

    def write(version=None, groups=None, *, path="/a/b", root="/", point="/sys/fs/cgroup", available=8 << 10):
        proc = tmp_path / "proc/self"
        proc.mkdir(parents=True)
        (tmp_path / "proc/meminfo").write_text(
            f"MemTotal:       99999999 kB\nMemFree:   1 kB\nMemAvailable:   {available * 1024} kB\n"
        )
        (proc / "status").write_text("Name:\tpython\nVmSize:\t  1024 kB\nVmData:\t  512 kB\n")
        if version is not None:
            lines = {1: f"9:name=systemd:/\n4:cpu,memory:{path}\n0::/\n", 2: f"0::{path}\n"}[version]
            (proc / "cgroup").write_text(lines)
            other = "24 23 0:22 / /proc rw - proc proc rw\n36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
            (proc / "mountinfo").write_text(other + MOUNTS[version].format(root=root, point=point))
            for name, files in (groups or {}).items():
                directory = tmp_path / point.replace(r"\040", " ").lstrip("/") / name
                directory.mkdir(parents=True, exist_ok=True)
                for file, content in files.items():
                    (directory / file).write_text(f"{content}\n")
        return available_host_memory(tmp_path)

    return write


def v1(limit, usage, inactive=0):
    return {
        "memory.limit_in_bytes": limit * MIB,
        "memory.usage_in_bytes": usage * MIB,
        "memory.stat": f"cache 5\ninactive_file 7\ntotal_cache 9\ntotal_inactive_file {inactive * MIB}",
    }


def v2(most, usage, inactive=0, high="max"):
    return {
        "memory.max": most if most == "max" else most * MIB,
        "memory.high": high if high == "max" else high * MIB,
        "memory.current": usage * MIB,
        "memory.stat": f"anon 5\nfile 8\ninactive_file {inactive * MIB}\nactive_file 3",
    }


def test_a_machine_without_control_groups(tree):
    assert tree() == 8 << 30


@pytest.mark.parametrize(("version", "files"), [(1, v1), (2, v2)])
class TestBothVersions:
    def test_own_group(self, tree, version, files):
        assert tree(version, {"a/b": files(1500, 300)}) == 1200 * MIB

    def test_file_pages_that_can_be_dropped_do_not_count(self, tree, version, files):
        assert tree(version, {"a/b": files(1500, 900, inactive=500)}) == 1100 * MIB

    def test_a_group_above(self, tree, version, files):
        groups = {"a": files(1000, 800), "a/b": files(1500, 300), "": files(4000, 900)}
        assert tree(version, groups) == 200 * MIB

    def test_the_topmost_group(self, tree, version, files):
        assert tree(version, {"": files(900, 800), "a/b": files(1500, 300)}) == 100 * MIB

    def test_the_machine_has_less(self, tree, version, files):
        assert tree(version, {"a/b": files(1500, 300)}, available=70) == 70 * MIB

    def test_a_group_that_is_full(self, tree, version, files):
        assert tree(version, {"a/b": files(1500, 1600)}) == 0

    def test_a_container_that_sees_its_own_group_as_the_root(self, tree, version, files):
        assert tree(version, {"": files(1500, 300)}, path="/") == 1200 * MIB

    def test_a_container_that_sees_the_path_on_its_host(self, tree, version, files):
        assert tree(version, {"": files(1500, 300)}, path="/docker/1f", root="/docker/1f") == 1200 * MIB

    def test_a_group_below_the_one_that_is_mounted(self, tree, version, files):
        groups = {"": files(1500, 300), "x": files(600, 500)}
        assert tree(version, groups, path="/docker/1f/x", root="/docker/1f") == 100 * MIB

    def test_a_group_that_is_not_mounted(self, tree, version, files):
        assert tree(version, {"": files(1500, 300)}, path="/other", root="/docker/1f") == 1200 * MIB

    def test_a_group_outside_the_namespace(self, tree, version, files):
        assert tree(version, {"": files(1500, 300)}, path="/../../x") == 1200 * MIB

    def test_a_mount_point_with_a_space(self, tree, version, files):
        assert tree(version, {"a/b": files(1500, 300)}, point=r"/my\040groups") == 1200 * MIB

    def test_files_that_are_missing(self, tree, version, files):
        assert tree(version, {"a/b": {}}) == 8 << 30


def test_without_a_limit_version_1_has_a_large_number(tree):
    assert tree(1, {"a/b": v1((1 << 43) - 1, 300)}) == 8 << 30


def test_without_a_limit_version_2_says_max(tree):
    assert tree(2, {"a/b": v2("max", 300)}) == 8 << 30


def test_the_limit_at_which_a_group_is_throttled(tree):
    assert tree(2, {"a/b": v2(1500, 300, high=700)}) == 400 * MIB


def limited(limit, script):
    """Run a script in a process that may take `limit` bytes more of an address space; return what it prints."""
    import resource

    def lower():
        resource.setrlimit(getattr(resource, limit), (3 << 30, resource.RLIM_INFINITY))

    command = [sys.executable, "-c", script]
    return subprocess.run(command, preexec_fn=lower, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does")
@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_resource_limits(limit, tmp_path):
    """What the process takes counts: 1 GiB more, and 1 GiB less is available."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(f"MemAvailable: {1 << 30} kB\n")
    os.symlink("/proc/self", tmp_path / "proc/self")
    script = (
        "import mmap\n"
        "from tsapps.kernels.system.host_memory import available_host_memory\n"
        f"before = available_host_memory({str(tmp_path)!r})\n"
        "held = mmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        f"print(before, available_host_memory({str(tmp_path)!r}))\n"
    )
    before, after = map(int, limited(limit, script).split())
    assert 2 << 30 < before < 3 << 30
    assert abs(before - after - (1 << 30)) < 1 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does")
def test_this_machine():
    with open("/proc/meminfo") as file:
        total = int(file.readline().split()[1]) * 1024
    assert 0 < available_host_memory() <= total
