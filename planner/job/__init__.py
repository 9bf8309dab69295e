"""The job around the iteration: failures and checkpoints, energy and carbon, input, hints.

Pure functions of numbers or columns, with their sources.
"""
