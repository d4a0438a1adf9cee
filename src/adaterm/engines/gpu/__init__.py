"""The fused engine for GPUs."""
