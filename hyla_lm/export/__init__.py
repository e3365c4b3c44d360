"""A trained model without its trainer: in Python, as a folder for PyTorch, as StableHLO."""
