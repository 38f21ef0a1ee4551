import sys
from pathlib import Path

# The benchmarks are no part of what installs.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
