"""Files from outside, YAML and JSON: read within limits, with places, and edited in place."""
