"""What is measured of a model while it trains: norms by layer, attention, the canary."""
