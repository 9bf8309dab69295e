"""A cluster file from what tools print about a machine: one module per tool, then one answer."""
