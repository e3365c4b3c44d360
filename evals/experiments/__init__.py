"""The experiments as data, their runner, results and reports."""
