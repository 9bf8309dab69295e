"""Rules of a DeepSpeed file: those of ``rules.yaml``, and what no condition says.

``enforced`` says whether DeepSpeedConfig itself refuses the file; what only the engine asserts, or
nothing does, is not. Rules look at values of the right kind only: others are findings already.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from planner.documents.tree import load_own
from planner.errors import did_you_mean
from planner.formats.deepspeed import keys
from planner.formats.deepspeed.keys import DeepspeedView
from planner.formats.settings import Rules, Violations

rule = Rules(DeepspeedView)
rule.add_table(load_own(__package__, "rules.yaml"))
keys.add_leaf_modules(rule)
_CONFIG = "deepspeed/runtime/config.py"
_ENGINE = "deepspeed/runtime/engine.py"
_MADE = f"{_ENGINE} makes them"


def replicas(file: DeepspeedView) -> int:
    """Data-parallel replicas on the world's ranks, rounded down."""
    if file.stages > 1:
        return file.num_gpus // (file.stages * file.script_tp)
    return file.num_gpus // (file.autotp * file.sequence)


@rule(_CONFIG)
def batch_triple_adds_up(file: DeepspeedView) -> Violations:
    """train_batch_size is micro-batch times steps times replicas."""
    total, micro, steps = map(file.size, (keys.TOTAL, keys.MICRO, keys.STEPS))
    if not total:
        return
    counts = {replicas(file)}
    if file.counts_all_ranks:
        counts.add(file.num_gpus)
    if not micro and not steps:
        if all(count and total % count for count in counts):
            yield keys.TOTAL, f"{total} sequence(s) over {min(counts)} replicas leave a rest"
        return
    wanted = [(micro or 1) * (steps or 1) * count for count in counts]
    is_whole = any(each and total % each == 0 for each in wanted)
    if not (total in wanted if micro and steps else is_whole):
        of_step = f", {micro} per micro-batch" if micro else ""
        number = f", {steps} step(s)" if steps else ""
        needed = f"train_batch_size = micro-batch x steps x {min(counts)} replicas"
        yield (
            keys.TOTAL,
            (
                f"the batch does not add up; given {total} sequence(s){of_step}{number}, "
                f"needed is {needed}"
            ),
        )


@rule(_CONFIG)
def key_not_removed(file: DeepspeedView) -> Violations:
    """No key stands there whose feature DeepSpeed has removed."""
    # Those that another key stands for.
    replaced = {
        "amp": "bf16, fp16 or torch_autocast",
        "curriculum_learning": "data_efficiency.data_sampling.curriculum_learning",
        "elasticity": f"{keys.TOTAL}, {keys.MICRO} and {keys.STEPS}",
    }
    for key in keys.listed_in("removed"):
        if key in file.settings:
            instead = f", or {replaced[key]} in its place" if key in replaced else ""
            yield (
                key,
                f"DeepSpeed removed {key} and refuses it; allowed is to leave it out{instead}",
            )


@rule.unenforced(f"{_ENGINE} makes it, or PyTorch")
def optimizer_is_known(file: DeepspeedView) -> Violations:
    """optimizer.type is DeepSpeed's own, in any case, or PyTorch's, as it is spelled there."""
    kind = file.stated(keys.TYPE)
    if kind and not keys.is_optimizer_type(kind):
        known = (*keys.listed_in("optimizers"), *keys.listed_in("torch_optimizers"))
        yield keys.TYPE, _unknown_type(kind, known)


@rule.unenforced(f"{_ENGINE} asserts it when it makes the schedule")
def scheduler_is_known(file: DeepspeedView) -> Violations:
    """scheduler.type is DeepSpeed's own or PyTorch's."""
    kind, known = file.stated("scheduler.type"), keys.listed_in("schedulers")
    if kind not in ("", *known):
        yield "scheduler.type", _unknown_type(kind, known)


def _unknown_type(kind: str, known: tuple[str, ...]) -> str:
    # Optimizers of older releases, with what is nearest to them.
    one_bit = {"onebitadam": "AdamW", "onebitlamb": "Lamb", "zerooneadam": "AdamW"}
    if instead := one_bit.get(kind.lower()):
        return f"DeepSpeed removed {kind}; {instead} in its place; 1-bit is not covered here"
    hint = did_you_mean(kind, known) or f"allowed are {', '.join(known)}"
    return f"neither DeepSpeed nor PyTorch has it; given {kind[:60]}, {hint}"


@rule.unenforced(f"{_MADE}: Python refuses the argument")
def parameters_are_known(file: DeepspeedView) -> Violations:
    """Optimizer and scheduler take the parameters that are given."""
    for params, schema, names in _parameters(file):
        known = schema["properties"]
        for name in names:
            if name not in known and name != "max_grad_norm":
                hint = did_you_mean(name, known) or f"it takes {', '.join(known)}"
                yield f"{params}.{name}", f"no parameter of {schema['title']}; {hint}"


@rule.unenforced(f"{_MADE}: Python misses the argument")
def needed_parameters_are_given(file: DeepspeedView) -> Violations:
    """Schedules that end are told when."""
    for params, schema, names in _parameters(file):
        for name in schema["required"]:
            if name not in names:
                yield params, f"{schema['title']} needs {name}"


@rule.unenforced(f"{_MADE}, and computes with them")
def parameters_are_numbers(file: DeepspeedView) -> Violations:
    """Learning rates, decays and steps are numbers, without quotes."""
    for params, schema, names in _parameters(file):
        for name in names:
            key = f"{params}.{name}"
            values = file[key] if isinstance(file[key], list) else [file[key]]
            texts = [each for each in values if isinstance(each, str) and each != keys.AUTO]
            entry = schema["properties"].get(name, {})
            if texts and entry.get("type") != "string":
                yield key, f"a number is needed, without quotes; given {texts[0][:40]!r}"


def _parameters(file: DeepspeedView) -> Iterator[tuple[str, Mapping[str, Any], list[str]]]:
    """Yield the path of parameters, what a known type takes, and the names that are given."""
    for section, schemas in keys.schema()["$defs"]["parameters"].items():
        kind, params = file.stated(f"{section}.type").lower(), f"{section}.params"
        if kind in schemas:
            places = [key.rpartition(".") for key in file.settings]
            yield params, schemas[kind], [name for above, _, name in places if above == params]
