"""``python -m bench.abft``: the command of run.py, whose functions worker processes import by its name."""

import sys

from bench.abft.run import main

sys.exit(main())
