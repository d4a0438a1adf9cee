"""The experiments: each a file with a frozen dataclass of settings, and how to run and show them."""
