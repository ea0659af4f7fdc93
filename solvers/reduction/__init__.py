"""Optimal reduction programs by other solvers: the boolean states of P², with the cost as the objective."""
