"""Links to the files that a run replaces or deletes, with their catalogue; for `verify`, links to whole partitions."""
