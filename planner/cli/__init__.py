"""Command line: one file per command; parse, call, print, exit code."""
