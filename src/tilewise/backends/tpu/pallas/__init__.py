"""Pallas kernels for TPUs, cut by noun; they import only JAX and each other."""
