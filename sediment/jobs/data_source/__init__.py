"""Parts of the data source `kafka-log`: its options, the offsets that they select, and its errors."""
