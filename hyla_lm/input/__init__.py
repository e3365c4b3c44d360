"""What feeds the trainer at run time."""
