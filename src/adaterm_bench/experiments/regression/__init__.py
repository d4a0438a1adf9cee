"""Regression with noisy samples (section 5.2)."""
