"""Run the benchmark: ``python -m tsapps.bench.ladder``."""

import sys

from tsapps.bench.ladder.run import main

if __name__ == "__main__":
    sys.exit(main())
