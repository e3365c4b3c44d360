"""Where the curves, histograms, pictures and texts of a run go."""
