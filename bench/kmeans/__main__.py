"""``python -m tsapps.bench.kmeans``: runs run.py, which worker processes must be able to import by name."""

import sys

from tsapps.bench.kmeans.run import main

sys.exit(main())
