"""Megatron-LM: traits, and the formats of its argument lists and launch scripts."""
