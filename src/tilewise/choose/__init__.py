"""WHO computes it: backends are asked "why not?", the first without a reason runs the call."""
