"""RVD layouts of tensors, and the search for the cheapest conversion between two (SuperScaler, section 4)."""
