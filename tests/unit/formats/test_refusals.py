"""What no file of a format can say is refused by name."""

from collections.abc import Callable

import pytest

from planner.cost.context import Context
from planner.formats.registry import load_format


@pytest.mark.parametrize(
    ("name", "profile", "is_refused"),
    [
        ("megatron", "nanotron", True),
        ("megatron", "llm.c", True),
        ("megatron", "classic", False),
        ("bridge", "classic", True),
        ("bridge", "zero-bubble", True),
        ("bridge", "bridge", False),
    ],
)
def test_profiles_of_other_programs_are_refused(
    context_of: Callable[..., Context], name: str, profile: str, is_refused: bool
) -> None:
    found = [
        text for text in load_format(name).problems(context_of(profile=profile)) if profile in text
    ]
    assert bool(found) == is_refused
