"""Finds launchers by name; a launcher is a module of this package that defines ``LAUNCHER``."""

from importlib import import_module

from planner.errors import InputError
from planner.launchers.launcher import Launcher
from planner.spelling import did_you_mean

LAUNCHERS = ("torchrun", "slurm", "kubernetes", "skypilot")


def load_launcher(name: str) -> Launcher:
    """Return a launcher by name; InputError where there is none."""
    if name not in LAUNCHERS:
        message = f"unknown launcher {name!r}; allowed are {', '.join(LAUNCHERS)}. "
        hint = did_you_mean(name, LAUNCHERS)
        raise InputError.single("command line", "--launcher", (message + hint).strip())
    found: Launcher = import_module(f"planner.launchers.{name}").LAUNCHER
    return found
