"""Many runs of one task trained at once."""
