"""Protected torch modules: linear layers whose products are checked, forward and backward, and repaired."""
