"""Formats of configuration files: written, read, judged and edited."""
