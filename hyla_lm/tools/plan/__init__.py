"""Plans a run on a TPU slice."""
