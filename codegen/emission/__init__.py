"""Plans as programs."""
