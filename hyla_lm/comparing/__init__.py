"""Trained runs against each other, document by document."""
