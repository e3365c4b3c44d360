"""Saving, restoring and choosing checkpoints."""
