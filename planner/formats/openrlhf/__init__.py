"""OpenRLHF's commands: the training step of the actor, or supervised fine-tuning."""
