"""NeMo 1.x: the YAML of its Megatron language models, as examples and launcher have it."""
