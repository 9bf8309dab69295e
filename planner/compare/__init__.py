"""A run's log against its price: how far they are apart, and where the difference lies."""
