"""Damaged files of every format that the project reads: mutations, formats, and the campaign that counts outcomes."""
