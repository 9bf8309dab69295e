"""Hugging Face ``config.json`` files as models, by a mapping of our own.

No part of transformers is imported, no code named in a config is run, nothing is fetched. Each
family is one class: its fields are the keys that give the shape, with the defaults that the config
class of transformers 5.23 has, and ``raw`` says them in the words of a model file.
"""
