"""The arena: optimizers people use, on clean and on dirty data, with learning rates tuned on clean data."""
