"""How much is drawn: a share of it usually, all of it with ``--hypothesis-profile=deep``."""

from hypothesis import settings

SHARE = 4  # one in so many
USUAL_EXAMPLES = settings.get_profile("default").max_examples


def is_deep() -> bool:
    return settings().max_examples > USUAL_EXAMPLES


def of_all(number: int) -> int:
    """So many, or the share of them that every run draws."""
    return number if is_deep() else max(number // SHARE, 1)
