"""Answers how a training job should be cut up across a cluster."""

__version__ = "0.1.0"
