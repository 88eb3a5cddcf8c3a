"""Adaptive rollout allocation for OpenRLHF: decide per prompt how many answers to sample (Reinforce-Ada)."""

from openrlhf_ada.training import Trained, TrainingError, train

__all__ = ["HOST_VERSION", "Trained", "TrainingError", "__version__", "train"]

__version__ = "0.1.0"

HOST_VERSION = "0.11.2"
"""The one OpenRLHF version this package extends; `host.parser` refuses any other."""
