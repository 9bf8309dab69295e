"""Legality rules of Megatron-LM 0.19.2."""

from planner.formats.megatron import rules_layout, rules_model, rules_mtp, rules_states

RULES = rules_layout.RULES + rules_model.RULES + rules_mtp.RULES + rules_states.RULES
