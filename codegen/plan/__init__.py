"""Plans as values: choices, checks, files."""
