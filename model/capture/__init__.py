"""From an nn.Module and example inputs to a PCG."""
