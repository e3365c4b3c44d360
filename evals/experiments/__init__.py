"""The paper's experiments as data, their runner, results and reports."""
