"""Pure cost functions: kernels, collectives, memory, pipeline; and the estimate built of them."""
