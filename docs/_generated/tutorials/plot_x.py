"""
Color quantization
==================

A photograph in 32 colors.
"""
import matplotlib.pyplot as plt
plt.plot([1,2])
