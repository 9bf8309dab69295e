"""From candidates to ranked plans: bounds first, exact answers where they decide."""
