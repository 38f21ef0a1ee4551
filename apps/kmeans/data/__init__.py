"""Access to X on the CPU or a GPU: blocks of rows, centering, the half-precision copy; independent of clusters."""
