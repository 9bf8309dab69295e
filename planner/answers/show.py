"""Entries of the catalog as rows: models, hardware, recipes and frameworks; base units."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from planner.answers.row import Row, row_from, row_of
from planner.catalog import unknown_name
from planner.catalog.clusters import is_counted, load_cluster, node_of_catalog
from planner.catalog.detect import Machine
from planner.catalog.hardware import (
    FigureRow,
    figure_rows,
    is_path,
    load_accelerator,
    load_entry,
    texts_of,
)
from planner.catalog.hardware_file import Kind
from planner.catalog.models import load_model, load_model_details
from planner.catalog.recipes import Recipe
from planner.catalog.words import SINGULAR, find_hardware, find_models, find_recipes, stated
from planner.errors import InputError
from planner.layers.parameters import (
    count_active_parameters,
    count_mtp_parameters,
    count_parameters,
)
from planner.limits import MAX_GPUS
from planner.spec.cluster import ClusterSpec, LevelSpec
from planner.spec.model import ModelSpec


class ModelRow(Row):
    """A model in a list; one token meets the active parameters."""

    name: str
    parameters: int
    active_parameters: int
    is_mixture: bool
    num_blocks: int
    hidden_size: int
    vocab_size: int
    max_seq_len: int

    @classmethod
    def of(cls, model: ModelSpec) -> "ModelRow":
        """The row of a model."""
        return row_from(
            ModelRow,
            model,
            parameters=count_parameters(model),
            active_parameters=count_active_parameters(model),
            is_mixture=model.moe is not None,
        )


class Models(Row):
    """The models that all words apply to; ``found`` counts those left out, too."""

    words: tuple[str, ...]
    found: int
    models: tuple[ModelRow, ...]


class Model(ModelRow):
    """One model: exact counts, published ones, its shape and what its file states."""

    mtp_parameters: int
    published_parameters: float | None
    published_active_parameters: float | None
    model: ModelSpec
    stated: dict[str, Any]
    basis: Literal["read", "recalled", "mixed"] | None
    note: str
    sources: tuple[str, ...]
    notes: tuple[str, ...]


def models(words: tuple[str, ...], most: int | None = None) -> Models:
    """The models that all words apply to, the first ``most`` as rows."""
    names = find_models(words)
    return Models(
        words=words,
        found=len(names),
        models=tuple(ModelRow.of(load_model(name)) for name in names[:most]),
    )


def model(name: str) -> Model:
    """A model of the catalog or of a file."""
    details = load_model_details(name)
    spec, file = details.spec, details.file
    published, active = file.params_published_b, file.params_active_published_b
    given = file.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    origin = file.provenance
    return Model(
        **asdict(ModelRow.of(spec)),
        mtp_parameters=spec.num_mtp_layers and count_mtp_parameters(spec),
        published_parameters=None if published is None else published * 1e9,
        published_active_parameters=None if active is None else active * 1e9,
        model=spec,
        stated={
            key: value
            for key, value in given.items()
            if not key.startswith("params_") and key != "provenance"
        },
        basis=origin.basis if origin else None,
        note=origin.note if origin else "",
        sources=tuple(each.citation() for each in origin.sources) if origin else (),
        notes=(*details.notes, *(f"not counted: {part}" for part in details.left_out)),
    )


class Named(Row):
    """Name and title of a hardware entry."""

    name: str
    title: str


class AcceleratorRow(Named):
    """An accelerator in a list; rates are dense, by data type, and power is rated."""

    vendor: str
    architecture: str
    hbm_bytes: float
    hbm_bytes_per_s: float
    peak_flops_per_s: dict[str, float]
    power_w: float | None

    @classmethod
    def of(cls, name: str) -> "AcceleratorRow":
        """The row of an accelerator."""
        spec = load_accelerator(name)
        return row_from(
            AcceleratorRow,
            spec,
            title=stated("accelerators", name)["title"],
            peak_flops_per_s={str(dtype): rate for dtype, rate in spec.peak_flops_per_s.items()},
            power_w=spec.tdp_w,
        )


class NodeRow(Named):
    """A node in a list; rates of its domain are per GPU and direction, of its network in all."""

    accelerator: str
    gpus: int
    scale_up: str
    scale_up_gpus: int
    scale_up_bytes_per_s: float
    fabric: str
    network_bytes_per_s: float | None
    host_memory_bytes: float | None
    usd_per_hour: float | None

    @classmethod
    def of(cls, name: str) -> "NodeRow":
        """The row of a node."""
        spec, _ = node_of_catalog(name)
        inside = spec.scale_up
        return row_from(
            NodeRow,
            spec,
            title=stated("nodes", name)["title"],
            accelerator=spec.accelerator.name,
            gpus=spec.num_accelerators,
            scale_up=inside.name,
            scale_up_gpus=inside.num_accelerators,
            scale_up_bytes_per_s=inside.bytes_per_s,
            network_bytes_per_s=spec.nic_bytes_per_s or None,
        )


class NamedRow(Named):
    """A fabric, or a machine and its node, in a list."""

    node: str | None

    @classmethod
    def of(cls, kind: Kind, name: str) -> "NamedRow":
        """The row of a fabric or a machine."""
        file = stated(kind, name)
        return NamedRow(name=name, title=file["title"], node=file.get("node"))


class Hardware(Row):
    """Entries by kind; ``found`` counts those left out, too."""

    words: tuple[str, ...]
    found: dict[str, int]
    accelerators: tuple[AcceleratorRow, ...]
    nodes: tuple[NodeRow, ...]
    fabrics: tuple[NamedRow, ...]
    machines: tuple[NamedRow, ...]


@row_of(leave_out=("ring_bytes_per_s", "kubernetes_resource"))
class Level(LevelSpec):
    """A level of a network, per GPU and direction."""


class HardwareEntry(Named):
    """One entry, every figure in its file's units; levels of a node are those of many nodes."""

    kind: Literal["accelerator", "node", "fabric", "machine"]
    note: str
    accelerator: AcceleratorRow | None
    node: NodeRow | None
    texts: dict[str, str]
    figures: tuple[FigureRow, ...]
    levels: tuple[Level, ...]


class Cluster(Row):
    """A number of nodes, or a file's: what it is of, and the levels of its network."""

    name: str
    node: str
    nodes: int
    accelerator: str
    gpus: int
    levels: tuple[Level, ...]
    assumed: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Detected(Machine):
    """A machine as tools saw it, what differs from the catalog, and its cluster file."""

    cluster_file: str
    written: tuple[str, ...]


def hardware(words: tuple[str, ...], most: int | None = None) -> Hardware:
    """The entries that all words apply to, ``most`` as rows: as many of every kind there is."""
    entries = find_hardware(words)
    names = {kind: [name for of, name in entries if of == kind] for kind in SINGULAR}
    # Files are read only of what is shown: the catalog has hundreds.
    num_kinds = max(1, sum(map(bool, names.values())))
    share = None if most is None else most // num_kinds
    shown = {kind: listed[:share] for kind, listed in names.items()}
    return Hardware(
        words=words,
        found={f"{SINGULAR[kind]}s": len(found) for kind, found in names.items()},
        accelerators=tuple(map(AcceleratorRow.of, shown["accelerators"])),
        nodes=tuple(map(NodeRow.of, shown["nodes"])),
        fabrics=tuple(NamedRow.of("fabrics", name) for name in shown["fabrics"]),
        machines=tuple(NamedRow.of("clusters", name) for name in shown["clusters"]),
    )


def hardware_entry(name: str) -> HardwareEntry | Cluster:
    """Return the catalog's data on an entry; for 4xNODE or a cluster file, the cluster."""
    if is_counted(name) or is_path(name):
        cluster = load_cluster(name)
        return Cluster(
            name=cluster.name,
            node=cluster.node.name,
            nodes=cluster.num_nodes,
            accelerator=cluster.accelerator.name,
            gpus=cluster.num_accelerators,
            levels=_levels(cluster),
            assumed=(*cluster.accelerator.assumptions, *map(str, cluster.assumptions)),
        )
    kind, own, file = load_entry(name)
    # Of a node the network is shown as that of the largest cluster: every level is in it.
    whole = {"clusters": own, "nodes": f"{MAX_GPUS}x{own}"}.get(kind)
    return HardwareEntry(
        kind=SINGULAR[kind],
        name=own,
        title=file.title,
        note=file.note,
        accelerator=AcceleratorRow.of(own) if kind == "accelerators" else None,
        node=NodeRow.of(own) if kind == "nodes" else None,
        texts=texts_of(file),
        figures=tuple(figure_rows(file)),
        levels=_levels(load_cluster(whole)) if whole else (),
    )


def _levels(cluster: ClusterSpec) -> tuple[Level, ...]:
    return tuple(row_from(Level, level) for level in cluster.levels)


@dataclass(frozen=True, kw_only=True)
class ListedRecipe(Recipe):
    """A recipe, the fewest GPUs that its degrees divide, and why it is only listed."""

    needed_gpus: int
    not_priced: str | None


class Recipes(Row):
    """Layouts that vendors tuned and ship."""

    words: tuple[str, ...]
    recipes: tuple[ListedRecipe, ...]


def recipes(words: tuple[str, ...]) -> Recipes:
    """The recipes that all words apply to; raises InputError for words that apply to none."""
    from planner.query.like import priced_problem, recipe_gpus

    rows = (
        ListedRecipe(
            **vars(recipe),
            needed_gpus=recipe_gpus(recipe),
            not_priced=priced_problem(recipe) or None,
        )
        for recipe in find_recipes(words)
    )
    return Recipes(words=words, recipes=tuple(rows))


class ProfileRow(Row):
    """A profile of a framework, what it stands for, and what it assumes otherwise."""

    framework: str
    profile: str
    title: str
    versions: str
    """Releases and years of the software."""
    runs: int
    sources: int
    """Of the published runs with it that have a time."""
    differs_from_current: tuple[str, ...]


class Frameworks(Row):
    """Software that a plan can assume."""

    profiles: tuple[ProfileRow, ...]
    facts: dict[str, tuple[str, ...]]  # of software, by their choices


class Trait(Row):
    """A trait as --set takes it, beside that of the framework's current profile."""

    name: str
    value: Any
    current: Any
    source: str


class Framework(ProfileRow):
    """A profile with what it assumes in words by topic, and every trait."""

    software: dict[str, str]
    traits: tuple[Trait, ...]
    recompute_modules: tuple[str, ...]
    selected_modules: tuple[str, ...]


def frameworks() -> Frameworks:
    """Every profile of every framework."""
    from planner.frameworks.registry import FRAMEWORKS, profile_names, software_facts

    rows = [
        ProfileRow(**_profile(framework, profile))
        for framework in FRAMEWORKS
        for profile in profile_names(framework)
    ]
    return Frameworks(
        profiles=tuple(rows),
        facts={fact: tuple(choices) for fact, choices in software_facts().items()},
    )


def framework(name: str) -> Framework:
    """The profile that ``FRAMEWORK`` or ``FRAMEWORK/PROFILE`` names; raises InputError."""
    # Lists of models and hardware read no traits.
    from planner.answers.software import phrases
    from planner.frameworks.registry import CURRENT, FRAMEWORKS, load_traits, trait_figures
    from planner.query.traits import RECOMPUTE, profile_problem

    named, _, profile = name.partition("/")
    profile = profile or CURRENT
    if named not in FRAMEWORKS:
        listing = "planner show frameworks"
        raise unknown_name("framework", named, FRAMEWORKS, "frameworks", name, listing)
    if problem := profile_problem(named, profile):
        raise InputError.single("frameworks", name, problem)
    traits, usual = load_traits(named, profile), trait_figures(named)
    return Framework(
        **_profile(named, profile),
        software=phrases(traits),
        traits=tuple(
            Trait(
                name=f"traits.{section}.{trait}",
                value=figure["value"],
                current=usual[section][trait]["value"],
                source=figure["source"],
            )
            for section, figures in trait_figures(named, profile).items()
            if section != RECOMPUTE
            for trait, figure in figures.items()
        ),
        recompute_modules=tuple(module.name for module in traits.recompute.modules),
        selected_modules=tuple(traits.recompute.selected),
    )


def _profile(framework: str, profile: str) -> dict[str, Any]:
    from planner.answers.software import differences
    from planner.frameworks.registry import CURRENT, profile_title

    return {
        **asdict(profile_title(framework, profile)),
        "differs_from_current": (
            () if profile == CURRENT else tuple(differences(framework, profile))
        ),
    }
