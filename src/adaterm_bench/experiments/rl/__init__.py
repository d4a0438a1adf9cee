"""Reinforcement learning with an actor-critic (section 6.1)."""
