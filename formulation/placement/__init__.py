"""Where the axes of a mesh lie on the levels of a machine."""
