"""Settings: dataclasses that gin binds, and gin files."""
