"""Consumer groups: the classic protocol as a state machine, and committed offsets."""
