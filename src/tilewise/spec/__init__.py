"""WHAT is computed: the meaning of attention, with no arrays and no devices. Standard library only."""
