"""Search space: decisions, the rules that cut them, and what the user narrows."""
