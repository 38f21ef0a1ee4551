"""Peak memory of a piece of work, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["peak_of"]

# The peak is that of the process since it began: what came before the work is taken off. A limit far above every bound
# keeps a test that fails from taking the machine.
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
    """Run Python text on one core; return the bytes of memory that `work` took, its exception and its `result`."""
    script = _SCRIPT.format(setup=setup, work="".join(f"    {line}\n" for line in work.strip().splitlines()))
    ended = subprocess.run([sys.executable, "-c", script], cwd=directory, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return tuple(json.loads(ended.stdout.splitlines()[-1]))
