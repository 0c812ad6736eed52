"""The parts of `LogManager`: load, create, delete and move logs, and write their checkpoints."""
