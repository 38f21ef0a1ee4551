"""The experiments of the TSM2 paper, repeated on this machine's GPU."""
