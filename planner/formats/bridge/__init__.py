"""Megatron-Bridge: recipe overrides, which carry Megatron's decisions under other names."""
