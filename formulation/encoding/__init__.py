"""From a PCG on a mesh to a cost network."""
