"""Collective algorithms as formulas: time, rounds and bytes per rank."""
