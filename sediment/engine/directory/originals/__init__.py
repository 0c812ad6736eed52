"""Files kept before a run: those that it replaces or deletes, with a catalogue; or whole partitions, for `verify`."""
