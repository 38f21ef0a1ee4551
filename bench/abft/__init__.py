"""Faults in protected data, products and fits, and what protecting costs."""
