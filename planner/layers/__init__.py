"""A transformer as tuples of Ops; everything else is a fold over them."""
