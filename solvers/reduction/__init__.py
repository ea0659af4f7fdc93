"""Solvers of boolean states for the cheapest reduction program: independent checks of the shortest path."""
