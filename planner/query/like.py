"""``--like``: what a recipe or a configuration file states, as part of a question."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.catalog.clusters import load_cluster, load_cluster_of
from planner.catalog.models import load_model
from planner.catalog.recipes import Recipe, find_recipe
from planner.documents.file import is_file
from planner.errors import InputError
from planner.frameworks.registry import load_traits
from planner.frameworks.settings import runtime_settings
from planner.layers.adapter_targets import training_problem
from planner.limits import MAX_BATCH
from planner.notes import COMMAND_LINE, Note, NoteKind
from planner.query.query import Query
from planner.spec.cluster import ClusterSpec
from planner.spec.training import FULL, Training, target_words
from planner.spec.traits import Setting

if TYPE_CHECKING:
    from planner.formats.format import Format, ParsedConfig
    from planner.query.values import Values

ZERO_STAGES = {"optimizer": 1, "megatron-fsdp": 3, "torch-fsdp2": 3}  # of what a recipe shards


def places_of(like: str) -> dict[str, str]:
    """Return model and cluster that a recipe or a file names."""
    if is_file(like):
        own = _reading(like)[1].own_model
        return {"model": own.spec.name} if own is not None and "" in own.places else {}
    recipe = _recipe(like)
    return {"model": recipe.model, "cluster": f"{recipe_cluster(recipe).num_nodes}x{recipe.node}"}


def with_like(query: Query) -> Query:
    """Return the question with the options that its ``--like`` states and it leaves open."""
    like = query.get("like")
    if like is None:
        return query
    stated = _of_file(like, query.cluster) if is_file(like) else _of_recipe(like, query)
    if "global_batch" in query.given or "global_batch_tokens" in query.given:
        stated.pop("global_batch", None)
    said = query.get("settings")
    paths = {text.partition("=")[0] for text in said}
    settings = [text for text in stated["settings"] if text.partition("=")[0] not in paths]
    stated |= query.given
    given = {**stated, "settings": (*settings, *said), "like": None}
    return Query.of(query.model, query.cluster, defaults=query.defaults, **given)


def not_priced_in(like: str | None) -> list[Note]:
    """A note that names what a file asks for and plans do not price."""
    from planner.formats.registry import not_priced

    named = not_priced(_reading(like)[1]) if like is not None and is_file(like) else None
    return [Note(kind=NoteKind.given, text=named[1], subject="like")] if named else []


def _recipe(name: str) -> Recipe:
    recipe = find_recipe(name)
    problem = priced_problem(recipe)
    if problem:
        raise InputError.single(COMMAND_LINE, "--like", f"{recipe.recipe}: {problem}")
    return recipe


def _of_recipe(name: str, query: Query) -> dict[str, Any]:
    from planner.search.space.expressions import ALIASES  # lists of recipes need none

    recipe = _recipe(name)
    degrees = stated_degrees(recipe)
    for item in ",".join(query.get("fix")).split(","):
        word = item.partition("=")[0].strip().lower()
        degrees.pop(ALIASES.get(word, word), None)
    return {
        "framework": recipe.source.framework,
        "profile": recipe.source.profile,
        "settings": [
            # YAML reads what is written: true, not True.
            f"traits.{path}={str(value).lower() if isinstance(value, bool) else value}"
            for path, value in recipe_settings(recipe)
        ],
        "global_batch": recipe.global_batch,
        "seq_len": recipe.seq_len,
        "precision": recipe.precision,
        "optimizer": recipe.optimizer,
        "mtp_layers": recipe.mtp_layers,
        "recompute_modules": ",".join(recipe.recompute_modules) or None,
        **_of_training(recipe.training),
        **degrees,
    }


def _of_training(training: Training | None) -> dict[str, Any]:
    """Options that say what is trained; none where that is everything, or not stated."""
    if training is None or not training.is_frozen:
        return {}
    return {
        "train": training.mode,
        "lora_rank": training.rank,
        "lora_targets": target_words(training.targets),
    }


def _of_file(name: str, cluster: str) -> dict[str, Any]:
    """Options that say what a configuration's job is; its layout is solved."""
    from planner.query.values import Values

    kind, reading = _reading(name)
    own, values = kind.framework_of(reading), Values(reading)
    length = values.given("seq_len") or (reading.longest and reading.longest.value)
    return {
        "framework": kind.name if own == kind.framework else own,
        **{word: values.given(word) or None for word in ("precision", "optimizer", "profile")},
        "seq_len": length if isinstance(length, int) else None,
        "settings": [f"traits.{path}={value}" for path, value in reading.traits],
        "global_batch": _batch(values, cluster),
        **_of_training(reading.training),
    }


def _reading(name: str) -> "tuple[Format, ParsedConfig]":
    """The file with its format and model; InputError where plans say nothing of it."""
    from planner.query.from_file import AUTO, format_of, source_of, with_model

    source = source_of(name)
    kind = format_of(source, AUTO)
    reading = with_model(kind.read(source))
    made_for = f"is for {reading.made_for}, which is not priced" if reading.made_for else ""
    if problem := reading.unpriced or made_for:
        raise InputError.single(COMMAND_LINE, "--like", f"{Path(name).name}: {problem}")
    return kind, reading


def _batch(values: "Values", cluster: str) -> int | None:
    """Sequences per iteration, as the file has them on its own GPUs, else on the cluster's."""
    from planner.query.values import read_batch, read_gpus

    if values.given("global_batch") is not None:
        return values.whole("global_batch", most=MAX_BATCH)
    if values.given("micro_batch") is None:
        return None
    gpus = read_gpus(values, asked=None, of_cluster=load_cluster(cluster).num_accelerators)
    batch = read_batch(values, gpus.dp, asked=None) if gpus.dp else None
    return batch["global_batch"] if batch else None


def priced_problem(recipe: Recipe) -> str:
    """Return why a recipe cannot be priced and is only listed; empty where it can be."""
    if recipe.training == FULL:
        return ""
    kernels = load_traits(recipe.source.framework, recipe.source.profile).kernels
    _, problem = training_problem(load_model(recipe.model), recipe.training, kernels)
    return problem


def recipe_settings(recipe: Recipe) -> tuple[Setting, ...]:
    """Traits that the recipe's runtime sets, over its profile."""
    return runtime_settings(
        graphs=recipe.cuda_graph,
        dispatcher=recipe.dispatcher,
        expert_overlap=recipe.expert_overlap,
        tp_overlap=recipe.tp_overlap,
    )


def recipe_gpus(recipe: Recipe) -> int:
    """Return the GPUs that a recipe states, or the next number that its degrees divide.

    That is a multiple of ``pp · lcm(tp · cp, ep · etp)``: the expert mesh ep x etp lies over the
    same ranks as tp x cp x dp. Source: megatron/core/parallel_state.py.
    """
    experts = recipe.ep * (recipe.etp or recipe.tp) if recipe.ep > 1 else 1
    least = recipe.pp * math.lcm(recipe.tp * recipe.cp, experts)
    return -(-(recipe.gpus or 1) // least) * least


def recipe_cluster(recipe: Recipe, num_gpus: int | None = None) -> ClusterSpec:
    """The accelerators of a recipe."""
    return load_cluster_of(f"1x{recipe.node}", num_gpus or recipe_gpus(recipe))


def stated_degrees(recipe: Recipe) -> dict[str, Any]:
    """Dimensions of a strategy that the recipe states, and their values."""
    names, etp = ("tp", "pp", "vpp", "cp", "micro_batch", "ep"), recipe.etp or recipe.tp
    if recipe.ep > 1 and recipe.etp is None:
        support = load_traits(recipe.source.framework, recipe.source.profile).support
        etp = int(support.usual_etp(recipe.tp, recipe.ep))
    return {
        **{name: getattr(recipe, name) for name in names},
        "etp": etp,
        "sequence_parallel": recipe.sequence_parallel and recipe.tp > 1,
        "zero_stage": ZERO_STAGES[recipe.sharding],
    }
