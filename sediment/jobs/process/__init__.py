"""The process of a command: its signals, its streams and its log; other packages of `jobs` build on it."""
