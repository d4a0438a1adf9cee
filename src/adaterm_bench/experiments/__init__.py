"""The experiments, each a folder: `experiment.py` says what to run, and `report.py` what to show of it."""
