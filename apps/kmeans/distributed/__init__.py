"""K-means on X that is distributed over several GPUs of one process; the results have the bits of one GPU."""
