"""The example files of Megatron's rules: two of each, and the world they run in."""

from dataclasses import dataclass
from pathlib import Path

import yaml

from planner.frameworks.format import Format, Reading, SourceText, World

FORMATS = Path(__file__).parent / "formats"


@dataclass(frozen=True, kw_only=True)
class Example:
    """One file of a rule, read."""

    path: Path
    reading: Reading
    world: World

    def broken(self, form: Format) -> set[str]:
        """Names of all rules it breaks."""
        return {
            rule.name for rule in form.rules if list(rule.check(self.reading.settings, self.world))
        }


def rule_names(name: str) -> list[str]:
    """Rules that have a folder of examples."""
    return sorted(folder.name for folder in (FORMATS / name).iterdir())


def load_example(form: Format, rule: str, kind: str) -> Example:
    """The ``refused`` or ``accepted`` file of a rule."""
    folder = FORMATS / form.name / rule
    (path,) = folder.glob(f"{kind}.*")
    reading = form.read(SourceText(path=str(path), text=path.read_text(encoding="utf-8")))
    beside = folder / "world.yaml"
    given = yaml.safe_load(beside.read_text(encoding="utf-8")) if beside.exists() else {}
    decisions = {name: value.value for name, value in reading.decisions.items()}
    world = World(
        num_gpus=given.get("num_gpus") or decisions.get("num_gpus", 0),
        decisions=decisions | given.get("decisions", {}),
        environment=given.get("environment", {}),
        accelerator=given.get("accelerator", ""),
    )
    return Example(path=path, reading=reading, world=world)
