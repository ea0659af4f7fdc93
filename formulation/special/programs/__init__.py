"""Functions that emitted programs call for special strategies; what follows the marker line is copied into them."""
