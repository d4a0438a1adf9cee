"""Regret on online problems, beside the bounds of section 4.5."""
