"""Regenerate docs/accuracy.md, and what plans know of its errors, from the published runs."""

from pathlib import Path

from planner.validation.docs import write_accuracy

ROOT = Path(__file__).resolve().parent.parent

if __name__ == "__main__":
    write_accuracy(
        ROOT / "tests" / "validation" / "published_runs.jsonl",
        ROOT / "docs" / "accuracy.md",
        ROOT / "planner" / "frameworks",
    )
