"""Conversion of the bytes of Kafka's log files to values and back.  Opens no file and reads no clock."""
