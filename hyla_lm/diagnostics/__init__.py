"""What is measured of a model while it trains: norms by layer, and attention."""
