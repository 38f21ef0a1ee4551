"""``python -m tsapps``: the command line."""

from tsapps.cli import main

main()
