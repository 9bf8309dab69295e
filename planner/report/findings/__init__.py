"""Findings of a check as text, JSON, SARIF, GitHub annotations and JUnit XML."""
