"""Why nothing fits or is left: minimal conflicts, nearest changes."""
