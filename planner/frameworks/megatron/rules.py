"""Legality rules of Megatron-LM."""

from planner.frameworks.format import FormatRule

RULES: tuple[FormatRule, ...] = ()
