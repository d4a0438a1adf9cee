"""The batch sizes of the regression (appendix F)."""
