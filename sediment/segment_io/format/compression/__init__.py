"""Compressed records: `streams` for Python callers; `compress` and `decompress` do the same inside kernels."""
