"""The decoder: layers, attention blocks, positions, head and loss."""
