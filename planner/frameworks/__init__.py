"""One folder per framework: its traits (and in time its rules, writer and reader)."""
