"""The part ``peft`` of Bridge's configuration: beside which matrices adapters stand, of what rank.

Source: megatron/bridge/peft/lora.py; data of a recipe of adapters are packed offline, which
``ConfigContainer.validate`` holds to micro-batches of one sequence (training/config.py).
"""

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from planner.cost.context import Context
from planner.formats.decision import which
from planner.formats.format import Located
from planner.formats.settings import as_whole
from planner.spec.strategy import Strategy
from planner.spec.training import MAX_RANK, TARGETS, Target, Training

# Modules of Megatron's layers by what they project.
NAMES: Mapping[str, tuple[Target, ...]] = {
    "linear_qkv": ("q", "k", "v"),
    "linear_proj": ("o",),
    "linear_fc1": ("gate", "up"),
    "linear_fc2": ("down",),
}
PEFT, RANK, MODULES, DROPOUT = "peft", "peft.dim", "peft.target_modules", "peft.dropout"
SPECS = "dataset.offline_packing_specs"
CLASS = "megatron.bridge.peft.lora.LoRA"
NULL = ("null", "none", "")
# An override: its key, the text of its value, and why; without a reason it is not told.
Override: TypeAlias = tuple[str, str, str]
# Switches of LoRA that plans do not price.
UNPRICED = {
    "peft.a2a_experimental": "other collectives of adapters",
    "peft.sequence_parallel_input_regather": "an adapter's input is gathered twice",
    "peft.exclude_modules": "adapters of all modules but some",
}


def names_of(training: Training) -> list[str]:
    """Bridge's names of the modules with adapters."""
    chosen = set(training.targets)
    return [name for name, targets in NAMES.items() if chosen.intersection(targets)]


def adapter_overrides(context: Context, strategy: Strategy) -> Iterator[Override]:
    """Overrides of a recipe of adapters, with reasons; none where all weights are trained."""
    training = context.traits.training
    if not training.is_frozen:
        return
    yield RANK, f"{training.rank}", training.words
    yield MODULES, f"[{','.join(names_of(training))}]", training.words
    if context.traits.kernels.adapter_dropout:
        yield DROPOUT, "0.1", "planned with a dropout of their inputs"
    yield from packing(context, strategy)


def packing(context: Context, strategy: Strategy) -> Iterator[Override]:
    """Yield how samples fill sequences: packed if micro-batches have one, and what cp needs."""
    if strategy.micro_batch == 1:
        why = "samples are packed into whole sequences"
        yield f"{SPECS}.packed_sequence_size", f"{context.job.seq_len}", why
        multiple = 2 * strategy.cp if strategy.cp > 1 else 1
        yield f"{SPECS}.pad_seq_to_mult", str(multiple), ""
    else:
        why = "packed samples need micro-batches of one sequence"
        yield SPECS, "null", why
        yield "dataset.enable_offline_packing", "false", why
    if strategy.cp > 1:
        yield "model.calculate_per_token_loss", "true", "a rank may see no token that counts"
        yield "ddp.average_in_collective", "false", ""


def adapter_value(key: str, text: str) -> object:
    """Return what an override of ``peft`` sets; raise ValueError with what is wrong with it."""
    text = text.strip("'\"")
    if key == RANK:
        rank = as_whole(text)
        if rank is None or not 1 <= rank <= MAX_RANK:
            raise ValueError(f"must be a whole number from 1 to {MAX_RANK:,}; given {text[:60]!r}")
        return rank
    if key == MODULES:
        words = text.strip("[]").replace(" ", "").split(",")
        return tuple(word for word in words if word)
    return text


def read_adapters(recipe: str, settings: Mapping[str, Located]) -> tuple[Training | None, str]:
    """Return what overrides of a recipe train, and why plans do not price it, where they do not.

    None where nothing speaks of adapters.
    """
    given = {key: each.value for key, each in settings.items() if key.startswith(PEFT)}
    is_off = str(given.pop(PEFT, "given")).lower() in NULL
    if is_off or not (given or "_peft_" in recipe):
        return None, ""
    rank, modules = given.get(RANK), given.get(MODULES)
    named = modules if isinstance(modules, tuple) else ()
    kind = str(given.get("peft._target_", CLASS))
    refused = {f"peft._target_ {kind[:80]}: plans price {CLASS}": kind != CLASS}
    for key, what in UNPRICED.items():
        switch = str(given.get(key, "false")).lower()
        refused[f"{key}: {what}, which plans do not price"] = switch not in ("false", "[]", *NULL)
    for name in named:
        unknown = f"{MODULES}: unknown target {name[:60]!r}; plans price {', '.join(NAMES)}"
        refused[unknown] = name not in NAMES
    unpriced = next(which(refused), "")
    if not unpriced and isinstance(rank, int) and isinstance(modules, tuple):
        chosen = {target for name in modules for target in NAMES[name]}
        targets = tuple(target for target in TARGETS if target in chosen)
        training = Training(
            mode="lora",
            rank=rank,
            targets=targets,
        )
        return training, ""
    lacking = " and ".join(key for key in (RANK, MODULES) if key not in given)
    return None, unpriced or f"adapters are trained, and {lacking} left to the recipe"
