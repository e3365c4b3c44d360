"""Sweeps: one training run for each point and seed, what they reached, and the best point."""
