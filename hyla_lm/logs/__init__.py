"""The log of a run and the sinks that its metrics go to."""
