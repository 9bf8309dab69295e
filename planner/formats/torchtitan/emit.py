"""Writes a plan as torchtitan's command-line words, or says everything it cannot express."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from planner.cost.context import Context
from planner.errors import ExpressError
from planner.formats.format import Decided, Emitted, OutputFile
from planner.formats.torchtitan import decisions as key
from planner.formats.torchtitan.known import POLICY
from planner.formats.torchtitan.layout import (
    SCHEDULE_NAMES,
    parts_of,
    schedule_of,
)
from planner.formats.torchtitan.model import Chosen, chosen_config, unlike_configs
from planner.spec.strategy import PLACEMENT_NAMES, Strategy

ARGS_FILE = "torchtitan.args"
PROFILES = ("current", "eager")
"""Profiles of the release that these words are for."""
OFFLOADS = ("none", "optimizer+parameters:host")
MODULE_SETS = {
    "current": "every_second_matmul_fused_qkv_compiled",
    "eager": "every_second_matmul_fused_qkv",
}
"""What selective checkpointing repeats, compiled and not."""
IMPLEMENTATIONS = {"adam": "fused", "adam-bf16": key.BF16_STATES}
VARIABLES = {
    "HF_ASSETS_PATH": "folder with the tokenizer's files, as scripts/download_hf_assets.py of "
    "torchtitan makes it",
    "DATASET": "a data set that torchtitan knows, such as c4",
    "STEPS": "optimizer steps to run",
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """One option with its values, and what it decides."""

    key: str
    """As torchtitan spells it in Python; the policy's is a word of its own."""
    words: tuple[str, ...]
    why: str = ""

    @property
    def text(self) -> str:
        """As the file holds it; variables stay open."""
        return " ".join(word if word.startswith("${") else shlex.quote(word) for word in self.words)


def emit(context: Context, strategy: Strategy) -> Emitted:
    """Return a plan as words; raises ExpressError with every reason where it is impossible."""
    check(context, strategy, whole=True)
    chosen = chosen_config(context)
    if chosen is None:
        raise ExpressError(f"torchtitan has no config of {context.model.name}")
    lines = [*_head(chosen), *decided_lines(context, strategy)]
    files = [OutputFile(name=ARGS_FILE, text="".join(f"{line.text}\n" for line in lines))]
    if chosen.text:
        files.append(OutputFile(name=f"{chosen.module}.py", text=chosen.text))
    words = [word for line in lines for word in line.words]
    return Emitted(
        files=tuple(files),
        command=("-m", "torchtitan.train", *words),
        variables=VARIABLES,
        decided=tuple(
            Decided(key=line.words[0], value=" ".join(line.words[1:]) or "set", why=line.why)
            for line in lines
            if line.why
        ),
    )


def check(context: Context, strategy: Strategy, *, whole: bool) -> None:
    """Raise ExpressError with every reason why words cannot say the plan.

    ``whole``: the model must be expressed too.
    """
    reasons = [*_software_reasons(context), *_state_reasons(context, strategy)]
    reasons += [*_pipeline_reasons(context, strategy), *_policy_reasons(context, strategy)]
    reasons += _model_reasons(context) if whole else ()
    if reasons:
        text = "".join(f"\n  - {reason}" for reason in reasons)
        raise ExpressError(f"torchtitan cannot express the plan:{text}")


def problems(context: Context) -> Iterator[str]:
    """What no words can say whatever the layout: profile, optimizer, modules, the model."""
    traits = context.traits
    yield from _software_reasons(context)
    yield from _model_reasons(context)
    allowed, selected = MODULE_SETS.get(traits.profile), traits.recompute.selected
    if allowed and selected != (allowed,):
        given = ", ".join(selected) or "nothing"
        yield f"recomputation of {given}: its selective policy repeats {allowed}"


def _model_reasons(context: Context) -> Iterator[str]:
    if chosen_config(context) is None:
        yield from unlike_configs(context)


def _head(chosen: Chosen) -> Iterator[Line]:
    where = "its own" if not chosen.text else "written for this plan, found in the working folder"
    yield Line(key="module", words=("--module", chosen.module))
    yield Line(
        key="config",
        words=("--config", chosen.config),
        why=f"config with the model's sizes, {where}",
    )
    yield Line(key="hf_assets_path", words=("--hf_assets_path", "${HF_ASSETS_PATH}"))
    yield Line(key="dataloader.dataset", words=("--dataloader.dataset", "${DATASET}"))
    yield Line(key="training.steps", words=("--training.steps", "${STEPS}"))


def decided_lines(context: Context, strategy: Strategy) -> Iterator[Line]:
    """All options that carry a decision, the policy's word last, as torchtitan needs it."""
    yield from _batch(context, strategy)
    yield from _degrees(strategy)
    yield from _states(context, strategy)
    yield from _pipeline(strategy)
    yield from _compiled(context, strategy)
    policy = policy_of(strategy)
    why = f"activations of every layer: {strategy.recompute}"
    yield Line(key=POLICY, words=(f"activation-checkpoint:{policy}",), why=why)


def _line(name: str, value: object, why: str = "") -> Line:
    return Line(key=name, words=(f"--{name}", str(value)), why=why)


def _switch(name: str, *, is_on: bool, why: str = "") -> Line:
    section, _, last = name.rpartition(".")
    return Line(key=name, words=(f"--{section}.{'' if is_on else 'no_'}{last}",), why=why)


def _batch(context: Context, strategy: Strategy) -> Iterator[Line]:
    local, number = strategy.micro_batch, strategy.num_micro_batches
    why = "sequences per micro-batch"
    if strategy.pp > 1:
        local, why = local * number, f"{number} micro-batches for the pipeline"
    yield _line(key.LOCAL_BATCH, local, why)
    total = strategy.dp * strategy.micro_batch * number
    yield _line(key.GLOBAL_BATCH, total, "sequences per iteration")
    yield _line(key.SEQ_LEN, context.job.seq_len, "tokens per sequence")


def _degrees(strategy: Strategy) -> Iterator[Line]:
    shard = strategy.dp // strategy.dp_replicate
    whys = {
        "tp": "tensor parallelism",
        "pp": "pipeline stages",
        "cp": "context parallelism",
        "ep": "expert parallelism, over the ranks of tp, cp and the shards",
        "dp_replicate": "replicas of the sharding group",
    }
    for name, spelled in key.DEGREES.items():
        yield _line(spelled, getattr(strategy, name), whys[name])
    yield _line(key.SHARD, shard, "states are sharded over them, and over context parallelism")
    if strategy.tp > 1:
        is_on = strategy.sequence_parallel
        yield _switch(key.SEQUENCE_PARALLEL, is_on=is_on, why="norms split over tensor parallelism")


def _states(context: Context, strategy: Strategy) -> Iterator[Line]:
    policy = "always" if strategy.zero_stage == 3 else "never"
    yield _line(key.RESHARD, policy, f"ZeRO stage {strategy.zero_stage}")
    is_on = strategy.offload != "none"
    yield _switch(key.OFFLOAD, is_on=is_on, why=f"offload: {strategy.offload}")
    yield _line(key.PRECISION, "bfloat16", f"precision {context.job.precision}")
    name = context.traits.optimizer.name
    yield _line(key.OPTIMIZER, IMPLEMENTATIONS[name], f"optimizer {name}")


def _pipeline(strategy: Strategy) -> Iterator[Line]:
    why = "the plan's time holds without them; refused with pipelining and most expert parallelism"
    yield _switch("training.disable_cuda_graphs", is_on=True, why=why)
    if strategy.pp == 1:
        return
    yield _line(key.SCHEDULE, schedule_of(strategy), f"schedule {strategy.schedule}")
    yield _line(key.MICRO_BATCH, strategy.micro_batch, "sequences per micro-batch")
    parts = tuple(",".join(part) for part in parts_of(strategy))
    layers = ", ".join(map(str, strategy.layers_per_stage))
    yield Line(key=key.PARTS, words=(f"--{key.PARTS}", *parts), why=f"layers per stage: {layers}")


def _compiled(context: Context, strategy: Strategy) -> Iterator[Line]:
    is_on = context.traits.profile == "current"
    profile = f"profile {context.traits.profile}"
    yield _switch("compile.enable", is_on=is_on, why=profile)
    overlaps = context.traits.overlap.tensor_parallel_overlap == "ring"
    if is_on:
        yield _line("compile.components", "model,loss", f"{profile}: blocks and loss")
    yield _switch(
        "compile.enable_async_tensor_parallel",
        is_on=is_on and overlaps and strategy.tp > 1,
        why="products in chunks beside the transfers of tensor parallelism",
    )


def policy_of(strategy: Strategy) -> str:
    """The one policy of all layers; empty where layers differ."""
    found = {"none": sum(map(sum, strategy.policy_counts)) == 0}
    found["selective"] = strategy.selective_layers_per_stage == strategy.layers_per_stage
    found["full"] = strategy.recompute_layers_per_stage == strategy.layers_per_stage
    return next((name for name, is_it in found.items() if is_it), "")


def _software_reasons(context: Context) -> Iterator[str]:
    traits = context.traits
    if traits.name != "torchtitan" or traits.profile not in PROFILES:
        given = f"{traits.name} {traits.profile}"
        yield f"profile {given}: release 0.3 is {' and '.join(PROFILES)} of torchtitan"
    if traits.optimizer.name not in IMPLEMENTATIONS:
        allowed = ", ".join(IMPLEMENTATIONS)
        yield f"optimizer {traits.optimizer.name}: words can choose {allowed}"


def _state_reasons(context: Context, strategy: Strategy) -> Iterator[str]:
    if strategy.zero_stage not in (2, 3):
        yield f"ZeRO stage {strategy.zero_stage}: torchtitan shards gradients (2) and weights (3)"
    if strategy.offload not in OFFLOADS:
        yield f"offload {strategy.offload}: torchtitan offloads all states to the host, or none"
    elif strategy.offload != "none" and strategy.offload_percent != 100:
        yield f"offload of {strategy.offload_percent} %: torchtitan offloads all states"
    if strategy.placement != PLACEMENT_NAMES[0]:
        yield f"placement {strategy.placement}: torchtitan's mesh is {PLACEMENT_NAMES[0]}"
    usual = 1 if strategy.ep > 1 else strategy.tp
    if strategy.etp != usual:
        yield (
            f"etp {strategy.etp} with ep {strategy.ep} and tp {strategy.tp}: torchtitan's experts "
            f"are whole under expert parallelism, else split as other layers are; needs {usual}"
        )
    kv_heads = context.model.num_heads if context.model.mla else context.model.num_kv_heads
    if kv_heads % strategy.tp:
        yield f"tp {strategy.tp}: torchtitan splits the {kv_heads} key and value heads whole"


def _pipeline_reasons(context: Context, strategy: Strategy) -> Iterator[str]:
    if strategy.pp == 1:
        if strategy.schedule != "1f1b" or strategy.vpp > 1:
            yield f"schedule {strategy.schedule} with {strategy.vpp} chunks on one stage"
        return
    if context.model.tied_embeddings:
        yield f"pp {strategy.pp}: torchtitan does not pipeline models with tied embeddings"
    if strategy.schedule not in SCHEDULE_NAMES:
        allowed = ", ".join(name for name in SCHEDULE_NAMES if name != "interleaved")
        yield f"schedule {strategy.schedule}: torchtitan has {allowed}"
    elif strategy.schedule.startswith(("zb", "dualpipe")) and context.traits.profile == "current":
        yield f"schedule {strategy.schedule}: torch runs it without compiled blocks (profile eager)"
    number, stages = strategy.num_micro_batches, strategy.pp * strategy.vpp
    least = {"1f1b": strategy.pp if strategy.vpp == 1 else 1, "dualpipe-v": stages}
    if number < least.get(strategy.schedule, 1):
        yield f"{number} micro-batches: torch runs {strategy.schedule} with {stages} at least"
    rounds = max(1, number // strategy.pp)
    if (strategy.vpp > 1 and strategy.schedule in ("1f1b", "zb-interleaved")) and number % rounds:
        yield f"{number} micro-batches: torch runs interleaved ones in {rounds} equal rounds"


def _policy_reasons(context: Context, strategy: Strategy) -> Iterator[str]:
    if any(strategy.offloaded_layers_per_stage):
        yield "activations on the host: torchtitan 0.3 has no such policy"
    elif not policy_of(strategy):
        yield (
            f"recomputation {strategy.recompute}: torchtitan has one policy for all layers, "
            "none, selective or full"
        )
    if any(strategy.selective_layers_per_stage):
        modules = strategy.recompute_modules or context.traits.recompute.selected
        allowed = MODULE_SETS.get(context.traits.profile, "")
        if modules != (allowed,):
            yield f"recomputation of {', '.join(modules)}: its selective policy repeats {allowed}"
