"""What changes training and is therefore asked for by name: ``--allow`` and files say these."""

from typing import TypeAlias

from planner.spec.exchange import GradientExchange, is_exchange, read_exchange
from planner.spec.zenflow import ZenFlow, is_zenflow, read_zenflow

Change: TypeAlias = GradientExchange | ZenFlow


def is_change(text: str) -> bool:
    """Whether a word names one, whatever follows it."""
    return is_exchange(text) or is_zenflow(text)


def read_change(text: str) -> Change:
    """One of its words; raises ValueError."""
    return read_zenflow(text) if is_zenflow(text) else read_exchange(text)
