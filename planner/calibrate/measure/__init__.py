"""Measures this machine with torch, which is imported by these modules and nowhere else."""
