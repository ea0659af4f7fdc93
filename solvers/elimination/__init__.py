"""Exact elimination on cost networks: circuits, label lists, memory prices."""
