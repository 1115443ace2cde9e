"""HOW a device computes it: one folder a backend."""
