"""Peak memory of a piece of Python code, measured in a separate process."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["peak_of"]

# The peak covers the whole process, so the peak before the work is subtracted. A limit far above all bounds keeps a
# failing test from exhausting the machine.
_SCRIPT = """
import json, os, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
{setup}
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
try:
    result = None
{work}
    error = None
except Exception as caught:
    error = [type(caught).__name__, str(caught)]
print(json.dumps([peak() - before, error, result]))
"""


def peak_of(setup: str, work: str, directory: Path) -> tuple[int, list[str] | None, Any]:
    """Run Python text on one core; return the bytes that `work` used, its exception and its `result`."""
    script = _SCRIPT.format(setup=setup, work="".join(f"    {line}\n" for line in work.strip().splitlines()))
    ended = subprocess.run([sys.executable, "-c", script], cwd=directory, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return tuple(json.loads(ended.stdout.splitlines()[-1]))
