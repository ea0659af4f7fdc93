"""Exact solvers of reductions and RVD paths, which check the shortest paths, and of joint placements."""
