"""Links to the files that a run replaces or deletes, with their catalogue; `verify` uses links to whole partitions."""
