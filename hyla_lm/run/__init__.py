"""A run's folder, its due actions and what is written about it."""
