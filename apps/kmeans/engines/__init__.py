"""Who does the work of an iteration: NumPy, cuBLAS, or our kernels. Composed from the stages beside it."""
