"""Branches of a graph that run in parallel."""
