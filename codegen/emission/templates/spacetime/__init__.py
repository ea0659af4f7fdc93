"""Templates of the programs of space-time plans."""
