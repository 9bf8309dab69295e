"""Documents about the catalog."""

from typing import Annotated, Any, Literal

from planner.catalog.detect import Override, Seen
from planner.catalog.recipes import Recipe
from planner.report.rows.base import FieldsOf, Row
from planner.report.rows.parts import AcceleratorRow, LevelRow, NodeRow
from planner.spec.model import ModelSpec


class ModelsModel(Row):
    """One entry of ``models``."""

    name: str
    parameters: int
    active_parameters: int
    """That one token meets."""
    is_mixture: bool
    num_blocks: int
    """Layers of all stacks."""
    hidden_size: int
    vocab_size: int
    max_seq_len: int


class ModelsDocument(Row):
    """Models of the catalog, all or those that words apply to."""

    words: list[str]
    """As given."""
    models: list[ModelsModel]


class ModelDocument(Row):
    """One model, of the catalog or of a file."""

    name: str
    parameters: int
    """Exact."""
    active_parameters: int
    """That one token meets."""
    mtp_parameters: int
    """Of multi-token prediction, in addition."""
    published_parameters: float | None
    """As published."""
    published_active_parameters: float | None
    model: ModelSpec
    basis: Literal["read", "recalled", "mixed"] | None
    """How the shape is known."""
    note: str
    sources: list[str]
    notes: list[str]
    """How a name or a file of another program was understood."""


class HardwareFabric(Row):
    """One entry of ``fabrics``."""

    name: str
    title: str


class HardwareMachine(Row):
    """One entry of ``machines``."""

    name: str
    title: str
    node: str


class HardwareDocument(Row):
    """Hardware of the catalog, all or what words apply to."""

    words: list[str]
    """As given."""
    accelerators: list[AcceleratorRow]
    nodes: list[NodeRow]
    fabrics: list[HardwareFabric]
    machines: list[HardwareMachine]


class HardwareEntryFigure(Row):
    """One entry of ``figures``."""

    name: str
    """Dotted key of the file."""
    value: Any
    """A number, a list of numbers, true or false."""
    unit: str
    """Of the file; empty where it has none."""
    basis: Literal["read", "recalled", "derived", "assumed", "measured", "given"]
    source: str
    note: str


class HardwareEntryDocument(Row):
    """One entry with every figure as its file states it, in the file's units."""

    kind: Literal["accelerator", "node", "fabric", "machine"]
    name: str
    title: str
    note: str
    accelerator: AcceleratorRow | None
    """Where it is one."""
    node: NodeRow | None
    """Where it is one."""
    texts: dict[str, str]
    """Keys of the file that are no figures."""
    figures: list[HardwareEntryFigure]
    levels: list[LevelRow]
    """Of the network, innermost first; of a node in a cluster of any size; else empty."""


class ClusterDocument(Row):
    """A cluster by number and node, or of a file."""

    name: str
    node: str
    nodes: int
    accelerator: str
    gpus: int
    levels: list[LevelRow]
    """Of the network, innermost first."""
    assumed: list[str]


class DetectedDocument(Row):
    """A machine as found, by --detect or --from."""

    node: str
    """Of the catalog."""
    nodes: int
    accelerator: str
    gpus_per_node: int
    seen: list[Seen]
    overrides: list[Override]
    from_catalog: list[str]
    """What nothing told."""
    notes: list[str]
    cluster_file: str
    """Its text."""
    written: list[str]
    """Paths."""


class RecipesRecipeSource(Row):
    """What ``source`` holds."""

    vendor: str
    title: str
    where: str


RecipesRecipe = Annotated[
    dict[str, Any],
    FieldsOf(
        "RecipesRecipe",
        Recipe,
        without=("source",),
        more={
            "needed_gpus": int,
            "node": str,
            "framework": str,
            "profile": str,
            "not_priced": str | None,
            "source": RecipesRecipeSource,
        },
    ),
]
"""One entry of ``recipes``."""


class RecipesDocument(Row):
    """Layouts that vendors tuned and ship."""

    words: list[str]
    """As given."""
    recipes: list[RecipesRecipe]


class FrameworksProfile(Row):
    """One entry of ``profiles``."""

    framework: str
    profile: str
    title: str
    """What it stands for."""
    versions: str
    """Releases and years of the software."""
    differs_from_current: list[str]
    """In words."""


class FrameworksDocument(Row):
    """Software that a plan can assume."""

    profiles: list[FrameworksProfile]


class FrameworkTrait(Row):
    """One entry of ``traits``."""

    name: str
    """As --set takes it."""
    value: Any
    current: Any
    """Of the framework's current profile."""
    source: str


class FrameworkDocument(Row):
    """One profile with every trait."""

    framework: str
    profile: str
    title: str
    versions: str
    software: dict[str, str]
    """What is assumed in words by topic."""
    traits: list[FrameworkTrait]
    recompute_modules: list[str]
    """What selective recomputation can repeat."""
    selected_modules: list[str]
    """What it repeats."""
