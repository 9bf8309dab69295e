"""A layout given degree by degree: filled in, refused where it is illegal; layouts compared."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from planner.cost.context import Context
from planner.errors import InputError, Problem
from planner.formats.megatron.options import chunks_of, even_chunks, parse_layout
from planner.notes import COMMAND_LINE
from planner.query.options import word_of
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
    split_values,
)
from planner.spec.traits import FrameworkTraits

# Follow from layers per stage and an option; left out where the layers are wrong already.
DERIVED = {
    policy.counts: "recompute_layers" if policy.is_recomputed else "offload_activations"
    for policy in LAYER_POLICIES.values()
}
# Options that decide what has no option of its own.
OPTIONS = {"num_micro_batches": "global_batch", **DERIVED}
Option = int | str | tuple[int, ...] | None
# What is given of a layout, by name: searched fields; ``global_batch`` in sequences, without it the
# context's in whole micro-batches; ``recompute`` and of how many layers of every stage, without a
# number all; of how many activations are offloaded, or "all"; ``layers_per_stage``.
Request = Mapping[str, Any]


def offered_stages(traits: FrameworkTraits, pp: int) -> tuple[int, ...]:
    """ZeRO stages of the framework, beside so many pipeline stages."""
    return traits.zero_stages_with_pp if pp > 1 else traits.support.zero_stages


def requested(**options: Option) -> Request:
    """The options that are given of a layout: SEARCHED_FIELDS and those of Request."""
    return {name: value for name, value in options.items() if value is not None}


def option_problems(request: Request) -> Iterator[tuple[str, str]]:
    """Yield the problems of single options, for any model and cluster."""
    layout = {**FIELD_DEFAULTS, **request}
    for name in SEARCHED_FIELDS:
        if name in request and (text := _value_problem(name, request[name])):
            yield f"--{name.replace('_', '-')}", text
    policy, layers = layout.get("recompute", "none"), layout.get("recompute_layers")
    moved, offload = layout.get("offloaded_layers"), layout["offload"]
    needs_policy = f"needs --recompute {' or '.join(RECOMPUTED)}"
    unknown = f"unknown policy {policy!r}; allowed are {', '.join(RECOMPUTE_WORDS)}"
    no_optimizer = offload in OFFLOAD_CODES and "optimizer" not in offload
    for option, is_wrong, text in (
        ("--recompute-layers", policy == "none" and layers is not None, needs_policy),
        ("--recompute", policy not in RECOMPUTE_WORDS, unknown),
        (
            "--recompute-layers",
            layers is not None and layers < 1,
            f"must be at least 1; given {layers}",
        ),
        (
            "--offload-percent",
            1 <= layout["offload_percent"] < 100 and no_optimizer,
            f"needs --offload with the optimizer's states; given {offload}",
        ),
        (
            "--offload-activations",
            isinstance(moved, int) and moved < 1,
            f"must be all, or at least 1; given {moved}",
        ),
    ):
        if is_wrong:
            yield option, text


def _value_problem(name: str, value: int | str) -> str | None:
    decision = STRATEGY_FIELDS[name]
    if decision.words:
        allowed = ", ".join(decision.words)
        known = value in decision.words
        return None if known else f"unknown {name} {value!r}; allowed are {allowed}"
    if decision.is_flag or decision.least <= int(value) <= decision.most:
        return None
    return f"must be from {decision.least} to {decision.most:,}; given {value}"


def _problems_with(context: Context, request: Request) -> Iterator[tuple[str, str]]:
    """Yield the problems that would break filling the layout in."""
    num_layers, traits, pp = context.model.num_blocks, context.traits, request.get("pp", 1)
    stages = offered_stages(traits, pp)
    if not set(stages) & set(traits.optimizer.zero_stages):
        offered = ", ".join(map(str, stages)) or "none"
        text = f"runs under no ZeRO stage {traits.name} offers here ({offered})"
        yield "--optimizer", f"{traits.optimizer.name} {text}"
    if pp > num_layers:
        yield "--pp", f"must be at most {num_layers}, the layers; given {pp}"
    usual = default_layers(num_layers, min(pp, num_layers), 1)
    longest = max(request.get("layers_per_stage", usual))
    given = {"--recompute-layers": "recompute_layers", "--offload-activations": "offloaded_layers"}
    for option, name in given.items():
        layers = request.get(name)
        if isinstance(layers, int) and layers > longest:
            yield option, f"no stage has more than {longest} layers; given {layers}"
    if request.get("sequence_parallel") and "sequence_parallel" not in traits.support.features:
        yield "--sequence-parallel", f"{traits.name} offers no sequence parallelism"


def _raise(problems: Iterable[tuple[str, str]]) -> None:
    InputError.check(Problem(where=COMMAND_LINE, key=key, message=text) for key, text in problems)


def with_batch(context: Context, strategy: Strategy) -> Context:
    """The context with the global batch this strategy runs."""
    return context.with_job(
        global_batch=strategy.dp * strategy.micro_batch * strategy.num_micro_batches
    )


def fill_in(context: Context, request: Request) -> tuple[Context, Strategy]:
    """Return the whole strategy and the context with its batch; InputError with broken rules."""
    _raise(option_problems(request))
    _raise(_problems_with(context, request))
    given = {name: request[name] for name in SEARCHED_FIELDS if name in request}
    asked, support = {**FIELD_DEFAULTS, **given}, context.traits.support
    tp, pp = asked["tp"], asked["pp"]
    # The highest usual stage that the framework offers here with this optimizer.
    offered = offered_stages(context.traits, pp)
    possible = set(offered) & set(context.traits.optimizer.zero_stages)
    usual = {stage for stage in possible if stage <= support.usual_zero_stage}
    follows = {
        "vpp": 2 if asked["schedule"] in V_SHAPED else 1,
        "dp": max(context.cluster.num_accelerators // gpus_of_replica(asked), 1),
        "etp": int(support.usual_etp(tp, asked["ep"])),
        "zero_stage": max(usual or possible, default=0),
        "sequence_parallel": tp > 1 and "sequence_parallel" in support.features,
    }
    values = {**asked, **follows, **given}
    batch = request.get("global_batch", context.job.global_batch)
    values["num_micro_batches"] = -(-batch // (values["dp"] * values["micro_batch"]))
    even = default_layers(context.model.num_blocks, pp, values["vpp"])
    layers = request.get("layers_per_stage", even)

    def at_most(limit: int | Literal["all"]) -> tuple[int, ...]:
        return layers if limit == "all" else tuple(min(number, limit) for number in layers)

    under = {
        request.get("recompute", "none"): at_most(request.get("recompute_layers", "all")),
        "offloaded": at_most(request.get("offloaded_layers", 0)),
    }
    strategy = Strategy(**values, **split_values(layers, under))
    if "global_batch" not in request:
        context = with_batch(context, strategy)
    broken = list(violations(context, strategy))
    if any(one.key == "layers_per_stage" for one in broken):
        broken = [one for one in broken if one.key not in DERIVED]
    _raise((f"--{OPTIONS.get(one.key, one.key).replace('_', '-')}", one.message) for one in broken)
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
    return (*chunks, *[size] * whole, *([last] if last else []))


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
    size = -(-num_layers // (pp * vpp))
    held = default_layers(num_layers, pp, vpp)
    return tuple(
        max(0, min(size, layers - chunk * size)) for chunk in range(vpp) for layers in held
    )


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
        decision.title or name: word_of(getattr(strategy, name))
        for name, decision in STRATEGY_FIELDS.items()
        if decision.kind and name != "offload_percent"
    }
    named["offload"] = _offload(strategy)
    layers, modules = strategy.layers_per_stage, strategy.recompute_modules
    listed = ", ".join(map(str, layers))
    return {
        **named,
        "recompute": strategy.recompute,
        **_moved(strategy),
        "layers per stage": listed if len(layers) <= 16 else f"{min(layers)} to {max(layers)}",
        "recompute modules": "the profile's" if modules is None else ", ".join(modules),
    }


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
