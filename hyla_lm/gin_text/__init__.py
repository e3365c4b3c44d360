"""gin as people write it: its grammar, bindings without quotes, where files are, mistakes."""
