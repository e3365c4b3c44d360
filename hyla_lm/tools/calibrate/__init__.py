"""Measures the devices that are here."""
