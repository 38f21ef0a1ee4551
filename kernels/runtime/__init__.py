"""Kernel launches on a GPU, with scratch memory and the interface to memory, streams and events."""
