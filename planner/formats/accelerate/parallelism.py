"""The section ``parallelism_config``: the mesh of dp_replicate, dp_shard, cp and tp."""

from collections.abc import Iterator

from planner.formats.accelerate.section import Line
from planner.formats.format import Value
from planner.formats.settings import Settings, decided, whole
from planner.spec.strategy import Strategy

PREFIX = "parallelism_config.parallelism_config_"
SIZES = ("dp_replicate", "dp_shard", "tp", "cp", "sp")
OWNED = tuple(f"{PREFIX}{name}" for name in (*(f"{size}_size" for size in SIZES), "cp_backend"))


def size_key(name: str) -> str:
    """The key of one size of the mesh."""
    return f"{PREFIX}{name}_size"


def sizes(settings: Settings) -> dict[str, int]:
    """All sizes of the mesh, 1 where the file gives none."""
    return {name: whole(settings, size_key(name), 1) for name in SIZES}


def is_given(settings: Settings) -> bool:
    """The file has a mesh at all."""
    return any(key.startswith("parallelism_config.") for key in settings)


def lines(strategy: Strategy) -> Iterator[Line]:
    """The mesh of a strategy; none for a single process."""
    if strategy.num_gpus == 1:
        return
    replicas, shard = strategy.dp_replicate, strategy.dp // strategy.dp_replicate
    why = {
        "dp_replicate": (replicas, f"{replicas} replica(s) of the sharding group"),
        "dp_shard": (shard, f"states are split over {shard} data-parallel ranks"),
        "tp": (strategy.tp, f"weights split over {strategy.tp} rank(s), innermost in the mesh"),
        "cp": (strategy.cp, f"sequence split over {strategy.cp} rank(s)"),
    }
    for name, (size, reason) in why.items():
        yield Line(key=size_key(name), value=size, why=reason)


def decisions(settings: Settings) -> dict[str, Value]:
    """Degrees the mesh decides; without a mesh, dp takes every process."""
    if not is_given(settings):
        return {}
    found = sizes(settings)
    made = {
        "tp": decided(settings, size_key("tp"), found["tp"]),
        "dp_replicate": decided(settings, size_key("dp_replicate"), found["dp_replicate"]),
        "dp": decided(settings, size_key("dp_shard"), found["dp_replicate"] * found["dp_shard"]),
    }
    name = "sp" if found["sp"] > 1 else "cp"
    made["cp"] = decided(settings, size_key(name), found[name])
    if found["sp"] > 1:
        num_processes = whole(settings, "num_processes", -1)
        outside = found["sp"] * found["tp"]
        if num_processes > 0 and num_processes % outside == 0:
            made["dp"] = decided(settings, "num_processes", num_processes // outside)
    return {name: value for name, value in made.items() if value.value != 1 or name == "dp"}
