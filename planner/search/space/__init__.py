"""What is searched: decisions, the rules that cut them, what the user narrows."""
