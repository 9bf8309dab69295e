"""A layout given degree by degree: filled in, refused where it is illegal; layouts compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from planner.cost.context import Context
from planner.errors import InputError, Problem
from planner.formats.megatron.layout import chunks_of, even_chunks, parse_layout
from planner.search.space.interleaving import default_layers
from planner.search.space.legality import violations
from planner.spec.strategy import (
    FIELD_DEFAULTS,
    LAYER_POLICIES,
    OFFLOAD_CODES,
    OFFLOAD_POLICIES,
    RECOMPUTE_WORDS,
    RECOMPUTED,
    SEARCHED_FIELDS,
    STRATEGY_FIELDS,
    V_SHAPED,
    Strategy,
    gpus_of_replica,
    policy_counts,
    split_values,
)

# Follow from layers per stage and an option; left out where the layers are wrong already.
DERIVED = {
    policy.counts: "recompute_layers" if policy.is_recomputed else "offload_activations"
    for policy in LAYER_POLICIES.values()
}
# Options that decide what has no option of its own.
OPTIONS = {"num_micro_batches": "global_batch", **DERIVED}
Option = int | str | tuple[int, ...] | None


@dataclass(frozen=True, kw_only=True)
class LayoutRequest:
    """A layout as given; what is missing, or None, is filled in."""

    given: Mapping[str, Any]  # of SEARCHED_FIELDS, by name
    global_batch: int | None = None  # sequences; None: the context's, in whole micro-batches
    recompute: str = "none"
    recompute_layers: int | None = None  # of every stage under the policy; None: all of them
    offloaded_layers: int | Literal["all"] | None = None  # of every stage, their activations
    layers_per_stage: tuple[int, ...] | None = None

    @property
    def layout(self) -> Mapping[str, Any]:
        """Searched fields as given, neutral defaults for the others."""
        return {**FIELD_DEFAULTS, **self.given}


def requested(**options: Option) -> LayoutRequest:
    """The request that options make, by the names of SEARCHED_FIELDS and of the other fields."""
    given = {name: options.pop(name) for name in SEARCHED_FIELDS if name in options}
    values: dict[str, Any] = {**options}
    stated = {name: value for name, value in given.items() if value is not None}
    return LayoutRequest(given=stated, **values)


def option_problems(request: LayoutRequest) -> list[tuple[str, str]]:
    """Return the problems of single options, for any model and cluster."""
    policy, recomputed, offloaded = (
        request.recompute,
        request.recompute_layers,
        request.offloaded_layers,
    )
    offload, percent = request.layout["offload"], request.layout["offload_percent"]
    has_no_states = offload in OFFLOAD_CODES and "optimizer" not in offload
    allowed = ", ".join(RECOMPUTE_WORDS)
    # Whether it is wrong, the option, and what is to be said.
    checks = (
        (
            policy == "none" and recomputed is not None,
            "--recompute-layers",
            f"needs --recompute {' or '.join(RECOMPUTED)}",
        ),
        (
            policy not in RECOMPUTE_WORDS,
            "--recompute",
            f"unknown policy {policy!r}; allowed are {allowed}",
        ),
        (
            recomputed is not None and recomputed < 1,
            "--recompute-layers",
            f"must be at least 1; given {recomputed}",
        ),
        (
            1 <= percent < 100 and has_no_states,
            "--offload-percent",
            f"needs --offload with the optimizer's states; given {offload}",
        ),
        (
            isinstance(offloaded, int) and offloaded < 1,
            "--offload-activations",
            f"must be all, or at least 1; given {offloaded}",
        ),
    )
    problems = [
        (f"--{name.replace('_', '-')}", text)
        for name, value in request.given.items()
        if (text := _value_problem(name, value))
    ]
    return problems + [(option, text) for is_wrong, option, text in checks if is_wrong]


def _value_problem(name: str, value: int | str) -> str | None:
    decision = STRATEGY_FIELDS[name]
    if decision.words:
        allowed = ", ".join(decision.words)
        known = value in decision.words
        return None if known else f"unknown {name} {value!r}; allowed are {allowed}"
    if decision.is_flag or decision.least <= int(value) <= decision.most:
        return None
    return f"must be from {decision.least} to {decision.most:,}; given {value}"


def _problems_with(context: Context, request: LayoutRequest) -> list[tuple[str, str]]:
    """Return the problems that would break filling the layout in."""
    num_layers, traits, pp = context.model.num_blocks, context.traits, request.layout["pp"]
    support, optimizer = traits.support, traits.optimizer
    stages = support.zero_stages_with_pp if pp > 1 else support.zero_stages
    offered = ", ".join(map(str, stages)) or "none"
    longest = max(request.layers_per_stage or default_layers(num_layers, min(pp, num_layers), 1))
    recomputed, offloaded = request.recompute_layers or 1, request.offloaded_layers
    # Whether it is wrong, the option, and what is to be said.
    checks = (
        (
            not set(stages) & set(optimizer.zero_stages),
            "--optimizer",
            f"{optimizer.name} runs under no ZeRO stage {traits.name} offers here ({offered})",
        ),
        (pp > num_layers, "--pp", f"must be at most {num_layers}, the layers; given {pp}"),
        (
            recomputed > longest,
            "--recompute-layers",
            f"no stage has more than {longest} layers; given {recomputed}",
        ),
        (
            isinstance(offloaded, int) and offloaded > longest,
            "--offload-activations",
            f"no stage has more than {longest} layers; given {offloaded}",
        ),
        (
            request.layout["sequence_parallel"] and not support.sequence_parallel,
            "--sequence-parallel",
            f"{traits.name} offers no sequence parallelism",
        ),
    )
    return [(option, text) for is_wrong, option, text in checks if is_wrong]


def _raise(problems: Sequence[tuple[str, str]]) -> None:
    if problems:
        raise InputError(
            Problem(where="command line", key=key, message=message) for key, message in problems
        )


def with_batch(context: Context, strategy: Strategy) -> Context:
    """The context with the global batch this strategy runs."""
    batch = strategy.dp * strategy.micro_batch * strategy.num_micro_batches
    return replace(context, job=replace(context.job, global_batch=batch))


def resolve(context: Context, request: LayoutRequest) -> tuple[Context, Strategy]:
    """Return the complete strategy and the context with its batch.

    Raises InputError with every broken rule and its numbers.
    """
    _raise(option_problems(request))
    _raise(_problems_with(context, request))
    asked, support = request.layout, context.traits.support
    tp, pp = asked["tp"], asked["pp"]
    # The highest usual stage that the framework offers here with this optimizer.
    offered = support.zero_stages_with_pp if pp > 1 else support.zero_stages
    possible = set(offered) & set(context.traits.optimizer.zero_stages)
    usual = {stage for stage in possible if stage <= support.usual_zero_stage}
    follows = {
        "vpp": 2 if asked["schedule"] in V_SHAPED else 1,
        "dp": max(context.cluster.num_accelerators // gpus_of_replica(asked), 1),
        "etp": int(support.usual_etp(tp, asked["ep"])),
        "zero_stage": max(usual or possible, default=0),
        "sequence_parallel": tp > 1 and support.sequence_parallel,
    }
    values = {**asked, **follows, **request.given}
    batch = request.global_batch or context.job.global_batch
    values["num_micro_batches"] = -(-batch // (values["dp"] * values["micro_batch"]))
    layers = request.layers_per_stage or default_layers(context.model.num_blocks, pp, values["vpp"])

    def at_most(limit: int | Literal["all"]) -> tuple[int, ...]:
        return layers if limit == "all" else tuple(min(number, limit) for number in layers)

    under = {
        request.recompute: at_most(request.recompute_layers or "all"),
        "offloaded": at_most(request.offloaded_layers or 0),
    }
    strategy = Strategy(**values, **split_values(layers, policy_counts(layers, under)))
    if request.global_batch is None:
        context = with_batch(context, strategy)
    broken = list(violations(context, strategy))
    if any(one.key == "layers_per_stage" for one in broken):
        broken = [one for one in broken if one.key not in DERIVED]
    _raise(
        [(f"--{OPTIONS.get(one.key, one.key).replace('_', '-')}", one.message) for one in broken]
    )
    return context, strategy


CUT = "..."  # at the end of a layout of which only the beginning is known


def layout_chunks(layout: str, num_layers: int) -> tuple[int, ...]:
    """Layers per chunk of a Megatron layout such as ``Et*4|(t*4|)*14tmL``.

    Embedding (E), MTP layers (m) and loss (L) are not counted. One that ends in ``...`` goes on
    with chunks as large as the last one known, while there are layers. ValueError says what is
    wrong with it.
    """
    chunks = chunks_of(parse_layout(layout.removesuffix(CUT).removesuffix("|")))
    if not layout.endswith(CUT):
        return chunks
    rest, size = num_layers - sum(chunks), chunks[-1]
    if not size:
        raise ValueError(f"{CUT} after a chunk of no layers")
    whole, last = divmod(rest, size)
    return (*chunks, *([size] * whole), *([last] if last else []))


def default_chunks(num_layers: int, pp: int, vpp: int) -> tuple[int, ...]:
    """Layers per chunk as Megatron's recipes split them where they state no layout.

    Even where pp · vpp divides them. Else, where it divides layers + 2, embedding and head count
    as a layer each, so both end chunks hold one less (Megatron's and torchtitan's rule, and
    BLOOM's). Else, without interleaving, the first stages hold one more, and with it chunks are
    full but for the last ones.
    """
    chunks = even_chunks(num_layers, pp, vpp)
    if chunks is None and pp > 1:
        chunks = even_chunks(num_layers, pp, vpp, embedding=True, loss=True)
    if chunks is not None:
        return chunks
    if vpp == 1:
        base, rest = divmod(num_layers, pp)
        return tuple(base + (stage < rest) for stage in range(pp))
    stages, size = default_layers(num_layers, pp, vpp), -(-num_layers // (pp * vpp))
    return tuple(
        max(0, min(size, layers - chunk * size)) for chunk in range(vpp) for layers in stages
    )


def _word(strategy: Strategy, name: str) -> str:
    value = getattr(strategy, name)
    if name == "offload":
        return _offload(strategy)
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _offload(strategy: Strategy) -> str:
    percent = strategy.offload_percent
    return f"{strategy.offload} {percent} %" if percent < 100 else strategy.offload


def _moved(strategy: Strategy) -> dict[str, str]:
    """Return the layer policies other than recomputation, and the number of layers under each."""
    under, num_layers = strategy.layers_under, sum(strategy.layers_per_stage)
    return {
        policy.title: f"{under[name]}/{num_layers}" if under[name] else "none"
        for name, policy in OFFLOAD_POLICIES.items()
    }


def values(strategy: Strategy) -> dict[str, str]:
    """Return the values that distinguish layouts, by title."""
    named = {
        decision.title or name: _word(strategy, name)
        for name, decision in STRATEGY_FIELDS.items()
        if decision.kind and name != "offload_percent"
    }
    named["recompute"] = strategy.recompute
    named |= _moved(strategy)
    layers = strategy.layers_per_stage
    named["layers per stage"] = (
        ", ".join(map(str, layers)) if len(layers) <= 16 else (f"{min(layers)} to {max(layers)}")
    )
    modules = strategy.recompute_modules
    named["recompute modules"] = "the profile's" if modules is None else ", ".join(modules)
    return named


def differences(before: Strategy, after: Strategy) -> dict[str, tuple[str, str]]:
    """Return the values that differ between both, by title."""
    first, second = values(before), values(after)
    changed = {name: (old, second[name]) for name, old in first.items() if old != second[name]}
    if before.etp == before.tp and after.etp == after.tp:
        changed.pop("etp", None)
    if before.pp != after.pp:
        changed.pop("layers per stage", None)
    if "none" in (first["recompute"], second["recompute"]):
        changed.pop("recompute modules", None)
    return changed


def short_layout(strategy: Strategy) -> str:
    """Degrees above one and what is not usual, in one line."""
    degrees = [f"{name}={value}" for name, value in strategy.degrees.items()]
    extras = [
        f"ZeRO-{strategy.zero_stage}",
        f"micro-batch {strategy.micro_batch}",
        *([f"schedule {strategy.schedule}"] if strategy.schedule != "1f1b" else []),
        *([f"recompute {strategy.recompute}"] if strategy.recompute != "none" else []),
        *([f"offload {_offload(strategy)}"] if strategy.offload != "none" else []),
        *(f"{title} {layers}" for title, layers in _moved(strategy).items() if layers != "none"),
    ]
    return ", ".join([" ".join(degrees) or "one GPU", *extras])
