"""Plans: a strategy with its inputs and estimate, and the file that carries one."""
