"""Model families, each at its full size and at a small one."""
