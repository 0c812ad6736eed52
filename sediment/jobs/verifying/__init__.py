"""The pairs of `sediment verify`, and its report."""
