"""How parameters are stored and what their gradients and updates cost."""
