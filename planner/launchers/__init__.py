"""Launchers: what starts the processes of an emitted plan."""
