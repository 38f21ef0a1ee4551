"""``python -m bench.gemm``: the command of run.py, whose functions worker processes import by its name."""

import sys

from bench.gemm.run import main

sys.exit(main())
