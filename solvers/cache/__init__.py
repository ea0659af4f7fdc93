"""Cache of solver answers, in memory and on disk."""
