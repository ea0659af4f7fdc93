"""Functions that emitted programs run for special strategies; what is below the line is copied into them."""
