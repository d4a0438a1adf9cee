"""Three test functions with wrong gradients (appendix C)."""
