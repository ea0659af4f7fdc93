"""What rules mean for all sizes and degrees: types of dims, unification, values as sums of products."""
