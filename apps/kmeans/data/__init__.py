"""Access to X on the CPU or a GPU: blocks of rows, centering, and the half-precision copy of X."""
