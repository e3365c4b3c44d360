"""A trained model without its trainer: in Python, and as a folder for PyTorch."""
