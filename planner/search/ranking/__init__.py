"""Ranking of candidates into plans: bounds first, exact answers where they decide."""
