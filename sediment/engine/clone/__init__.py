"""Making a log directory that a stock broker starts on as a node of its own cluster."""
