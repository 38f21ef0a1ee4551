"""CUDA C++ kernels run on the CPU from their own source: `harness` builds and calls them, cuda_host.hpp runs them."""
