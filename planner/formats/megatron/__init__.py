"""Megatron-LM: traits, and the formats of its argument lists, launch scripts and YAML files."""
