"""Run the benchmark: ``python -m bench.ladder``."""

import sys

from bench.ladder.run import main

if __name__ == "__main__":
    sys.exit(main())
