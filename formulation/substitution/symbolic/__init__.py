"""The symbolic meaning of rules: types of dims, unification, values as sums of products."""
