"""What changes training and is therefore asked for by name: ``--allow`` and files say these."""

from typing import TypeAlias

from planner.spec.exchange import GradientExchange, is_exchange, read_exchange

Change: TypeAlias = GradientExchange


def is_change(text: str) -> bool:
    """Whether a word names one, whatever follows it."""
    return is_exchange(text)


def read_change(text: str) -> Change:
    """One of its words; raises ValueError."""
    return read_exchange(text)
