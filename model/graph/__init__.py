"""The parallel computation graph (PCG): nodes, layouts, and what is derived from them."""
