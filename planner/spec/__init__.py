"""Frozen dataclasses of the domain: model, cluster, job, framework traits, strategy."""
