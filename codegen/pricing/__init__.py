"""What a plan costs, stated a second time in plain Python: moves, operators, weights."""
