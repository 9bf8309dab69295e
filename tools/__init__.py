"""What maintains this repository: documentation, fits, tables of measurements; not installed."""
