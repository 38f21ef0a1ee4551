"""``python -m tsapps.bench.gemm``: runs run.py, which worker processes must be able to import by name."""

import sys

from tsapps.bench.gemm.run import main

sys.exit(main())
