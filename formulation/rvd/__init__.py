"""How a tensor lies on devices, and the cheapest way to make it lie otherwise: RVD search (SuperScaler, section 4)."""
