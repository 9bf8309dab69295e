"""What is wrong with a configuration file: its rules, its layout, memory, a better plan."""
