"""Selection of a kernel and its parameters from problem sizes, layouts and GPU data alone. Arrays, CuPy and launches
are never here."""
