"""Hamerly's bounds: rows whose nearest center cannot have changed are skipped."""
