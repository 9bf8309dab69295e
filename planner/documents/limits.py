"""How large a document may be: the same for YAML and JSON, whoever reads it."""

MAX_BYTES = 2**18
"""Thirty times the longest launch script seen, six times a config.json with a label per class."""
MAX_DEPTH = 64
"""Mappings and lists inside each other, aliases and merge keys written out."""
MAX_VALUES = 50_000
"""Keys and values in the text; values with aliases and merge keys written out."""
MAX_DIGITS = 301
"""Of a number; a float holds every whole number of so many."""
