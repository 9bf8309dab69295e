"""verl's Hydra overrides: the training step of the actor, or of fine-tuning."""
