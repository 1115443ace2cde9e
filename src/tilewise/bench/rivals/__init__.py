"""What tilewise is measured against: one file a rival, each the best that its library can do on a CPU."""
