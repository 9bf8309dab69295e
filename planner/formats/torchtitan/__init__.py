"""torchtitan: traits, and its command-line words as a format."""
