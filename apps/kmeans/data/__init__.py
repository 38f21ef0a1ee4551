"""X where it is: rows, the frame that they are centered in, and the half-precision copy. It knows no clusters."""
