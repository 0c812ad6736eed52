"""Creation of a log directory on which a stock broker starts as a node of a separate cluster."""
