"""Which kernel computes a product and with which parameters, from sizes alone. Nothing here needs a GPU."""
