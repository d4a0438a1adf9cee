"""Stable-Baselines3's PPO with and without clipping of gradients."""
