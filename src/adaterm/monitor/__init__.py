"""What an optimizer made of its batches and gradients, step by step."""

from adaterm.monitor.findings import Aberrant, Layer, Sample
from adaterm.monitor.monitor import Monitor

__all__ = ["Aberrant", "Layer", "Monitor", "Sample"]
