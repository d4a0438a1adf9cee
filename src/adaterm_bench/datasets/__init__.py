"""What the networks learn from: files, simulated robots and simulated tasks."""
