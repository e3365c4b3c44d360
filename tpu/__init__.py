"""Launching on Cloud TPU v5e: queued resources, a supervisor, and GKE."""
