"""The format of DeepSpeed: its JSON file and the hostfile of its launcher."""
