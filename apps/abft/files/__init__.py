"""Protection of whole files: every byte is covered, and what was corrupted is restored bit by bit.

Each file has a sidecar, and each directory a manifest (`manifest.py`); parity files (`parity.py`) are optional. A file
is treated as a matrix of one row of bytes, to which the exact code of `at_rest/` applies. So headers and tensors of any
rank and type are covered, and nothing of a file is interpreted in order to repair it.

    targets → scan → protect, verify → repair
"""
