"""Backends of the solver protocol: elimination, CP-SAT, MILP, SMT."""
