"""Solvers for space-time plans: feasible orders, smallest conflicts, proofs of transformations, schedules."""
