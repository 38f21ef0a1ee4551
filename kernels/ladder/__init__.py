"""The road to the kernels of today: TSM2 as published."""
