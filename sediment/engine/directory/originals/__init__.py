"""Files that a run keeps: those that it replaces or deletes, with a catalogue; or whole partitions, for `verify`."""
