"""A plan as one HTML file: what to run, why, and where its time and memory go."""
