"""The operating system: files written whole, the cache, JSON, printable text, memory limits."""
