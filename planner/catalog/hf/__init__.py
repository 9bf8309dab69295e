"""Hugging Face ``config.json`` files as models, by a mapping of our own.

No part of transformers is imported, no code named in a config is run, nothing is fetched.
families.yaml has a block per ``model_type``: the keys that give the shape, with the defaults that
the config class of transformers 5.23 has, and what they are in the words of a model file.
"""
