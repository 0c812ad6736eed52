"""Links to the files that a run replaces or deletes, with a catalogue; for `verify`, links to whole partitions.
"""
