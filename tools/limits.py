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
    dense, mixtures, device = (
        _row(page, title)
        for title in (
            "dense models",
            "mixture-of-experts models",
            "whole device (nvidia-smi)",
        )
    )
    ranges = LEFT_OUT.search(page)
    if ranges is None:
        raise ValueError(f"{ACCURACY.name} has no line of all runs in their ranges")
    return textwrap.fill(
        f"On {dense[0]} published runs of dense models iteration time is off by {dense[1]} % on "
        f"average (nine of ten within {dense[2]} %), on {mixtures[0]} of mixtures of experts by "
        f"{mixtures[1]} % (within {mixtures[2]} %), and the peak of a device's memory, on "
        f"{device[0]} runs, by {device[1]} % (within {device[2]} %). The range that every plan "
        f"states held {ranges[2]} % of {ranges[1]} runs when their own source was left out.",
        width=104,
    )


def _row(page: str, title: str) -> tuple[str, str, str]:
    found = re.search(rf"^\| {re.escape(title)} \| {NUMBERS}", page, re.MULTILINE)
    if found is None:
        raise ValueError(f"{ACCURACY.name} has no row {title!r}")
    return found[1], found[2], found[3]
