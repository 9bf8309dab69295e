"""The search: space and rules, bounds in columns, the exact stage problem, ranking."""
