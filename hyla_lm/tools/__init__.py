"""Tools that only the command line imports."""
