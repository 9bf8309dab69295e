"""What scripts/ use and the program does not: generated parts of the documentation."""
