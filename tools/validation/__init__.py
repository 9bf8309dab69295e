"""Compares the model with published training runs, each estimated as it was configured."""
