"""Hugging Face TrainingArguments in JSON."""
