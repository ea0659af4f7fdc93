"""Branches of a graph that run side by side."""
