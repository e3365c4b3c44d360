"""Coordinate checks."""
