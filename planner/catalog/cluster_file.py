"""The schema of a cluster file, what its ``overrides`` change, and its text."""

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, Field, create_model

from planner.catalog.figures import FIGURE_KEYS, Count, Name, Positive, Strict, implausible
from planner.catalog.hardware_file import level_faults
from planner.limits import MAX_GPUS, one_line
from planner.notes import Note, NoteKind

Part = Literal["accelerator", "node", "fabric"]
# Key in a cluster file to the file and key it replaces.
OVERRIDES: Mapping[str, str] = FIGURE_KEYS["overrides"]
WHOLE = ("accelerators_per_node", "scale_up_domain_accelerators", "nics", "host_cores")
# By an override, what the catalog says beside the figure and does not hold of the user's machine.
STALE: Mapping[str, tuple[str, ...]] = {
    # What is reached follows from it.
    "peer_to_peer": ("efficiency_fraction",),
    # Those of other machines.
    "gemm_sustained_fraction": ("sustained_slowest_fraction", "sustained_fastest_fraction"),
}


def _kind(key: str) -> Any:  # noqa: ANN401 - a type
    """The type of an override: a yes or no, a count, or an amount; of plausible magnitude."""
    if key == "peer_to_peer":
        return bool | None

    def plausible(value: float) -> float:
        if message := implausible(OVERRIDES[key].rpartition(".")[2], value):
            raise ValueError(message)
        return value

    number = Count if key in WHOLE else Positive
    return Annotated[number, AfterValidator(plausible)] | None


OverrideValues: Any = create_model(
    "OverrideValues",
    __base__=Strict,
    **dict[str, Any]({key: (_kind(key), None) for key in OVERRIDES}),
)


class ClusterLevel(Strict):
    """One level of the fabric as a user gives it; keys as in a fabric file, values plain."""

    name: Name
    num_nodes: Annotated[int, Field(gt=0, le=MAX_GPUS)] | None = None
    latency_us: Annotated[float, Field(gt=0, le=10_000)] | None = None
    oversubscription: Annotated[float, Field(ge=1, le=100_000)] | None = None
    reduces_in_network: bool | None = None


class ClusterFile(Strict):
    """``count`` times ``node``; names of the catalog, or paths beside the cluster file.

    A node and an accelerator may also be stated whole, with the keys of their own files.
    """

    name: Name | None = None
    node: str | dict[str, Any]
    count: Annotated[int, Field(gt=0, le=MAX_GPUS)]
    accelerator: str | dict[str, Any] | None = None
    fabric: str | None = None
    levels: Annotated[tuple[ClusterLevel, ...], Field(strict=False)] = ()
    overrides: OverrideValues = OverrideValues()

    def broken(self) -> Iterator[tuple[str, str]]:
        """Yield what is wrong with the sizes of the levels."""
        return level_faults([each.num_nodes for each in self.levels])


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """Values a cluster file puts in place of the catalog's."""

    where: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    levels: tuple[ClusterLevel, ...] = ()  # levels of the fabric in place of its own

    def apply(self, part: Part, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return the raw file of one part with its overridden figures, sourced to the user."""
        changed = deepcopy(dict(raw)) if self.values or self.levels else dict(raw)
        given = {"basis": "given", "source": "given"}
        for key, value in self.values.items():
            owner, *steps, name = OVERRIDES[key].split(".")
            if owner != part:
                continue
            section = changed
            for step in steps:
                price = {"provider": "cluster file", "date": "as given"} if step == "price" else {}
                section = section.setdefault(step, price)
            section[name] = {"value": value, **given}
            for stale in STALE.get(key, ()):
                section.pop(stale, None)
        if part == "fabric" and self.levels:
            changed["levels"] = [
                {
                    key: value if key == "name" else {"value": value, **given}
                    for key, value in level.model_dump(exclude_none=True).items()
                }
                for level in self.levels
            ]
        if changed != raw:
            changed.setdefault("sources", {})["given"] = {"path": self.where}
        return changed

    def notes(self) -> tuple[Note, ...]:
        """Return what was overridden, a note each."""
        said = [f"{key} {value:g}" for key, value in self.values.items()]
        said += [f"network level {level.name}" for level in self.levels]
        return tuple(
            Note(kind=NoteKind.given, text=f"given: {each}", subject="cluster") for each in said
        )


def file_text(
    written: str,
    remarks: Iterable[str],
    raw: Mapping[str, Any],
    overrides: Iterable[tuple[str, str, str]] = (),
) -> str:
    """The text of a cluster file: what wrote it, remarks, its keys, and overrides with comments."""
    lines = [f"# Written by {one_line(written)}; edit what is wrong."]
    lines += [f"# {one_line(remark)}" for remark in remarks]
    lines.append(
        yaml.dump(
            dict(raw),
            Dumper=_Dumper,
            sort_keys=False,
            default_flow_style=False,
            width=10_000,
            allow_unicode=True,
        ).rstrip()
    )
    own = [
        f"  {key}: {value}{f'  # {one_line(comment)}' if comment else ''}"
        for key, value, comment in overrides
    ]
    if own:
        lines += ["overrides:", *own]
    return "\n".join(lines) + "\n"


class _Dumper(yaml.SafeDumper):
    """Figures on one line each, as hwdb has them, and no references."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True

    def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> Any:  # noqa: ANN401
        is_figure = isinstance(mapping, dict) and "value" in mapping
        return super().represent_mapping(tag, mapping, flow_style=is_figure or flow_style)


_Dumper.add_representer(
    dict, lambda dumper, data: dumper.represent_mapping("tag:yaml.org,2002:map", data)
)
