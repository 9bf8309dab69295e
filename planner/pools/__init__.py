"""Plans on machines of several kinds: pools of equal nodes, and the network between them."""
