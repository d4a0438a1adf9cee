"""The networks that the experiments train."""
