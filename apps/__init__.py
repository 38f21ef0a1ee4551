"""The applications that stand on the core, one package each."""
