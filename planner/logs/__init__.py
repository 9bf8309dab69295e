"""Logs of training runs: what was measured, and the layout that they print at their start."""
