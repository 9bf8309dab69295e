"""Hugging Face Accelerate: its traits, and its configuration file in YAML."""
