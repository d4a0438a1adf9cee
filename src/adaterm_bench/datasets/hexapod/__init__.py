"""Trajectories of a hexapod that walks in a simulation, for long-term prediction."""

from adaterm_bench.datasets.hexapod.dataset import DESCRIPTION, Dataset, generate, list_states, load, save
from adaterm_bench.datasets.hexapod.simulation import MissingError, Recording

__all__ = ["DESCRIPTION", "Dataset", "MissingError", "Recording", "generate", "list_states", "load", "save"]
