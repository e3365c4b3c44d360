"""The commands of hyla-lm: a file for each, which imports what it needs when it runs."""
