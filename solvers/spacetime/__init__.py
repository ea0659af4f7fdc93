"""Space-time plans, checked by solvers: feasible orders, smallest conflicts, proofs of transformations."""
