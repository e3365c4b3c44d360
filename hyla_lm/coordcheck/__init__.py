"""Coordinate checks: how a model's activations and their changes grow with its width."""
