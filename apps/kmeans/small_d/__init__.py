"""Iterations for few features: assignment and update in one launch that reads X once."""
