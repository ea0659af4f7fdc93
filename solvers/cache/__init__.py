"""Answers that are kept, in memory and on disk."""
