"""``python -m tsapps.bench.abft``: runs run.py, which worker processes must be able to import by name."""

import sys

from tsapps.bench.abft.run import main

sys.exit(main())
