"""Large cost networks as arrays: exact reductions, the linear program, bounds by messages, and descent."""
