"""Planner: how should this training job be cut up across this cluster?"""

__version__ = "0.1.0"
