"""Launches and scratch memory on a GPU."""
