"""What of a job of verl's plans price, what runs beside it, and what keeps them from it."""

from collections.abc import Iterator

from planner.formats.format import Value
from planner.formats.losses import LIGER
from planner.formats.settings import Settings, as_number, flag, given, whole, word
from planner.formats.verl.program import ENGINES, MEGATRON
from planner.spec.training import MAX_RANK, TARGETS, Training, read_targets
from planner.spec.traits import Setting

OPTIMIZERS = {
    ("torch.optim", "adamw"): "adam",
    ("torch.optim", "adam"): "adam",
    ("torch.optim", "sgd"): "sgd",
    ("torchao.optim", "adamw8bit"): "adam-8bit",
    ("bitsandbytes.optim", "adamw8bit"): "adam-8bit-bitsandbytes",
}
"""By ``optimizer_impl`` and ``optimizer``: verl/workers/config/optimizer.py build_optimizer."""
BF16 = ("bf16", "bfloat16")
PRECISIONS = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16"}
SHARDED: tuple[Setting, ...] = (
    ("states.gradient_reduce_bytes", 4.0),
    ("states.accumulated_gradient_bytes", 0.0),
    ("states.reduces_every_micro_batch", True),
    ("offload.gradient_passes_per_micro_batch", 1.0),
)
"""Gradients are reduced in 32 bits, in every micro-batch: no backward is under no_sync, in
verl/workers/actor/dp_actor.py; reduce_dtype in verl/workers/fsdp_workers.py."""
UNFUSED: Setting = ("states.step_temporary_bytes", 4.0)
"""torch.optim.AdamW without fused: square roots of all second moments at once."""
ONE_UNIT: Setting = ("states.gathers_embedding_with_head", True)
"""Of FSDP1: the root unit holds what no block does."""
FUSED = LIGER
"""Log-probabilities from hidden states, in chunks: verl/utils/experimental/torch_functional.py."""
IN_PLACE: tuple[Setting, ...] = (
    ("kernels.loss", "flash_attention"),
    ("kernels.loss_traffic_bytes", 16.0),
)
"""flash-attn's cross-entropy on 16-bit logits: logprobs_from_logits in
verl/utils/torch_functional.py."""


def engine_of(words: Settings, config: str) -> Value:
    """The engine that trains; a configuration of verl's for Megatron says it too."""
    place = words["engine"]
    if not place.line and MEGATRON in config:
        return Value(value=MEGATRON, key="--config-name")
    return place


def unpriced(words: Settings, engine: Value, module: str) -> str:
    """Why plans say nothing of memory and time; empty where they do."""
    if is_experimental(module):
        return f"{module[-60:]}: a trainer that places its models otherwise"
    if engine.value not in ENGINES:
        return f"{engine.key} {str(engine.value)[:40]}: plans price {', '.join(ENGINES)}"
    if flag(words, "activation_offload"):
        return f"{words['activation_offload'].key}: activations go to the host"
    if engine.value == MEGATRON:
        rank = words["rank"]
        return f"{rank.key}: adapters under Megatron" if whole(words, "rank", 0) > 0 else ""
    if optimizer_of(words) is None:
        return f"{words['optimizer'].key} {given(words, 'optimizer')}: of another library"
    shards, ranks = whole(words, "shard_ranks", -1), whole(words, "sequence_ranks", 1)
    if shards > 0 and ranks > 0 and shards % ranks:
        place = words["shard_ranks"]
        return f"{place.key} {shards}: states are split within the {ranks} ranks of a sequence"
    if whole(words, "rank", 0) > 0 and word(words, "held") not in BF16:
        held = words["held"]
        return f"{held.key} {held.value}: frozen weights in 32 bits are not modelled"
    return ""


def is_experimental(module: str) -> bool:
    """Whether a trainer is not of verl's own kind: where it places its models is not known."""
    return "experimental" in module


def optimizer_of(words: Settings) -> str | None:
    """The optimizer by the names of optimizers.yaml."""
    library, name = (word(words, each).lower() for each in ("optimizer_from", "optimizer"))
    return OPTIMIZERS.get((library, name))


def training_of(words: Settings) -> Training:
    """All weights, or adapters."""
    rank = whole(words, "rank", 0)
    if not 0 < rank <= MAX_RANK:
        return Training()
    names = word(words, "targets", "all-linear").strip("[]").replace("_proj", "")
    try:
        targets = read_targets(",".join(each.strip(" '\"") for each in names.split(",")))
    except ValueError:
        targets = TARGETS
    return Training(mode="lora", rank=rank, targets=targets)


def traits_of(words: Settings, engine: Value) -> Iterator[Setting]:
    """What verl's FSDP does otherwise than Accelerate's, and how it makes log-probabilities."""
    if engine.value == MEGATRON:
        return
    yield from SHARDED
    if word(words, "held") not in BF16:
        yield UNFUSED
    if engine.value == "fsdp":
        yield ONE_UNIT
    if flag(words, "fused_loss"):
        yield from FUSED
    elif "fused_loss" in words and not as_number(given(words, "entropy")):
        yield from IN_PLACE


def held_share(words: Settings) -> Value | None:
    """The share of HBM that the engine which generates keeps while the actor trains.

    None where it gives its memory back, as it does unless ``free_cache_engine`` is false.
    """
    share = as_number(given(words, "engine_share"))
    if "engine_frees" not in words or given(words, "engine_frees") is not False:
        return None
    is_share = share is not None and 0 < share < 1
    place = words["engine_share"]
    return Value(value=share, key=place.key, line=place.line) if is_share else None


def beside(words: Settings) -> str:
    """What of reinforcement learning is not priced, in words; empty for fine-tuning."""
    if "engine_share" not in words:
        return ""
    share = words["engine_share"]
    found = ["generation and log-probabilities"]
    if flag(words, "kl_loss") or flag(words, "kl_reward"):
        found.append("the reference model")
    has_critic = word(words, "estimator", "gae") == "gae"
    if has_critic:
        found.append("the critic, whose states share these GPUs unless offloaded")
    if flag(words, "reward_model"):
        found.append("the reward model")
    frees = held_share(words) is None
    holds = (
        f"the engine that generates gives its memory ({share.key} {share.value}) back before"
        if frees
        else f"{share.value} of HBM is the engine's that generates ({share.key}), and taken off"
    )
    names = f"{', '.join(found[:-1])} and {found[-1]}" if found[1:] else found[0]
    return f"priced is the actor's training step; not {names}; {holds}"
