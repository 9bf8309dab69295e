"""Front ends of Hugging Face's Trainer: a table of words each, and one reader for all."""
