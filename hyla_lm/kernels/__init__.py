"""Attention operations: a float32 definition beside each faster kernel."""
