"""The explanatory figures of the paper."""
