"""The core: tall-and-skinny products and the device they run on. It knows nothing of applications or files."""
