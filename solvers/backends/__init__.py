"""The solvers behind the protocol: elimination, CP-SAT, MILP, SMT."""
