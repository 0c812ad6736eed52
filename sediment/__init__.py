"""Sediment: Kafka log compaction on Spark.

This folder is the import namespace.  `sediment.segment_io`, `sediment.compaction`, `sediment.retention`,
`sediment.engine` and `sediment.jobs` are links to the folders of those names at the top level, so that an editable
install, the wheel and the linters all see one namespace and nothing generic is installed.
"""

__version__ = "0.1.0"
