"""Fuzzing of all file formats that the project reads: mutations, formats, and a campaign that counts outcomes."""
