"""Originals, which are the files that a run replaces or deletes, with their catalogue; whole partitions for `verify`.
"""
