"""Legality rules of Megatron-LM 0.19.2."""

from planner.formats.megatron import rules_layout, rules_model, rules_states

RULES = (*rules_layout.rule, *rules_model.rule, *rules_states.rule)
