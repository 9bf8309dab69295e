"""How far off the model is, in a sentence for readers in a hurry; figures from docs/accuracy.md."""

import re
import textwrap

from tools.pages import DOCS

ACCURACY = DOCS / "accuracy.md"
NUMBERS = r"(\d+) \| ([\d.]+) \| [\d.]+ \| ([\d.]+) \|"
"""Runs, mean and 90th percentile of a row, in percent."""
LEFT_OUT = re.compile(r"All (\d+) runs: .*?, ([\d.]+) % inside the one taken without their source")


def accuracy_in_words() -> str:
    """Errors of time and memory on published runs, and how often the stated range holds."""
    page = ACCURACY.read_text("utf-8")
    tuned, tuned_mixtures, others, other_mixtures, device = (
        _row(page, title)
        for title in (
            "dense models as makers tune them",
            "mixtures of experts as makers tune them",
            "dense models as others run them",
            "mixtures of experts as others run them",
            "whole device (nvidia-smi) as others run them",
        )
    )
    ranges = LEFT_OUT.search(page)
    if ranges is None:
        raise ValueError(f"{ACCURACY.name} has no line of all runs in their ranges")
    return textwrap.fill(
        f"On {tuned[0]} runs of dense models that makers of the software or the hardware "
        f"published iteration time is off by {tuned[1]} % on average (nine of ten within "
        f"{tuned[2]} %), on {tuned_mixtures[0]} of mixtures of experts by {tuned_mixtures[1]} %; "
        f"on {others[0]} runs of others by {others[1]} % (within {others[2]} %) and on "
        f"{other_mixtures[0]} of mixtures by {other_mixtures[1]} %. The peak of a device's "
        f"memory, on {device[0]} runs of others, is off by {device[1]} % (within {device[2]} %). "
        f"The range that every plan states held {ranges[2]} % of {ranges[1]} runs when their own "
        "source was left out.",
        width=104,
    )


def _row(page: str, title: str) -> tuple[str, str, str]:
    found = re.search(rf"^\| {re.escape(title)} \| {NUMBERS}", page, re.MULTILINE)
    if found is None:
        raise ValueError(f"{ACCURACY.name} has no row {title!r}")
    return found[1], found[2], found[3]
