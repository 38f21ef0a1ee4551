"""``python -m bench.kmeans``: the command of run.py, whose functions worker processes import by its name."""

import sys

from bench.kmeans.run import main

sys.exit(main())
