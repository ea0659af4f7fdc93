"""Templates of the emitted programs and pages."""
