"""Run the benchmark: ``python -m tsapps.bench.scale``."""

import sys

from tsapps.bench.scale.run import main

if __name__ == "__main__":
    sys.exit(main())
