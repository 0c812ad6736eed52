"""Loading a partition as a broker does at its start: interrupted changes, segments, recovery, producers."""
