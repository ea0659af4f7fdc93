"""Machine descriptions in YAML, each number with its source."""
