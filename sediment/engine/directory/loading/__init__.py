"""Loading of a partition as a broker does it at its start: interrupted changes, segments, recovery, producers."""
