"""Run the benchmark: ``python -m tsapps.bench.paper``."""

import sys

from tsapps.bench.paper.run import main

if __name__ == "__main__":
    sys.exit(main())
