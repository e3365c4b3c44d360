"""Sweeps over settings and seeds."""
