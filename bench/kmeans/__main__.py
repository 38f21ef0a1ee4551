"""``python -m bench.kmeans``: runs run.py, which worker processes must be able to import by name."""

import sys

from bench.kmeans.run import main

sys.exit(main())
