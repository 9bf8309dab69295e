"""Launchers: what starts the processes of an emitted plan. One file per launcher."""
