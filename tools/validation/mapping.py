"""A published run as the planner's inputs: model, job, cluster, traits and strategy."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from planner.answers.layout import default_chunks, layout_chunks
from planner.catalog.models import catalog_name, load_model
from planner.cost.context import Context
from planner.cost.kernels import peak_flops_per_s
from planner.formats.megatron.options import per_stage
from planner.spec.job import USUAL_IMBALANCE_FRACTION, JobSpec
from planner.spec.model import Biases, MixerSpec, MlaSpec, ModelSpec, MoeSpec
from planner.spec.strategy import (
    MODEL_PARALLEL_DEGREES,
    Strategy,
    gpus_of,
    split_values,
)
from planner.spec.traits import SupportTraits
from tools.validation.records import Model, Parallel, Record
from tools.validation.setup import CannotEstimateError, to_cluster, to_setup, with_adapters
from tools.validation.sound import contradictions, impossible

OFFLOADS = ("none", "optimizer:host", "optimizer+parameters:host")
"""Of a record's words, those that a strategy has."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What ``estimate`` needs for one record, and what had to be assumed."""

    context: Context
    strategy: Strategy
    notes: tuple[str, ...]


def _known(value: int | None, what: str) -> int:
    if value is None:
        raise CannotEstimateError(f"{what} not published")
    return value


def to_model(model: Model) -> ModelSpec:
    """Return the ModelSpec of a published architecture.

    Gated models are taken as Llama-like (RMS norm, no biases), others as GPT-like (layer norm
    and biases) where biases are not stated; learned positions are left out. Layers that records
    have no words for are those of the model of this name in the catalog.
    """
    name = catalog_name(model.name)
    if name and not model.mamba and (known := load_model(name)).layer_pattern:
        return replace(known, name=model.name, max_seq_len=_known(model.seq_len, "sequence length"))
    if model.linear_attention:
        raise CannotEstimateError("linear attention is not modelled")
    gated = bool(model.gated_mlp)
    mla = model.mla
    heads = _known(model.heads, "number of heads")
    hidden = _known(model.hidden, "hidden size")
    has_biases = _has_biases(model)
    latent_dim = mla.qk_nope + mla.qk_rope if mla else hidden // heads
    return ModelSpec(
        name=model.name,
        num_layers=_known(model.layers, "number of layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=model.kv_heads or heads,
        head_dim=model.head_dim or latent_dim,
        ffn_size=_known(model.ffn, "feed-forward size"),
        gated_mlp=gated,
        activation="quick-gelu-clamped" if model.clamped else "gelu",
        vocab_size=_known(model.vocab, "vocabulary"),
        max_seq_len=_known(model.seq_len, "sequence length"),
        tied_embeddings=bool(model.tied_embeddings),
        biases=Biases(qkv=has_biases, attention_output=has_biases, mlp=has_biases),
        norm="rmsnorm" if gated or model.layer_pattern else "layernorm",
        embedding_norm=model.embedding_norm,
        scaled_rotary=model.scaled_rotary,
        sliding_window=model.sliding_window or 0,
        full_attention_step=model.full_attention_step or 0,
        moe=_moe(model),
        mixer=_mixer(model),
        layer_pattern=model.layer_pattern,
        mtp_pattern=model.mtp.pattern if model.mtp else "",
        mla=None
        if mla is None
        else MlaSpec(
            q_lora_rank=mla.q_lora,
            kv_lora_rank=mla.kv_lora,
            qk_nope_head_dim=mla.qk_nope,
            qk_rope_head_dim=mla.qk_rope,
            v_head_dim=mla.v_head,
        ),
    )


def _has_biases(model: Model) -> bool:
    plain = not (model.gated_mlp or model.layer_pattern)
    return plain if model.biases is None else model.biases


def _mixer(model: Model) -> MixerSpec | None:
    mamba = model.mamba
    if mamba is None:
        return None
    return MixerSpec(
        kind="mamba2",
        num_heads=mamba.heads,
        head_dim=mamba.head_dim,
        num_key_heads=mamba.groups,
        key_dim=mamba.state,
        conv_kernel=mamba.conv,
        chunk_size=mamba.chunk,
    )


def _moe(model: Model) -> MoeSpec | None:
    moe = model.moe
    if moe is None:
        return None
    return MoeSpec(
        num_experts=moe.experts,
        top_k=moe.top_k,
        expert_ffn_size=moe.expert_ffn,
        num_shared_experts=moe.shared_experts,
        shared_ffn_size=moe.shared_expert_ffn or moe.shared_experts * moe.expert_ffn,
        num_leading_dense_layers=moe.first_dense_layers,
        expert_bias=_has_biases(model) and bool(model.gated_mlp),
        latent_size=moe.latent or 0,
    )


def layout_layers(layout: str, pp: int) -> tuple[int, ...]:
    """Layers per stage of a whole Megatron layout; chunk c is on stage c mod pp."""
    return per_stage(layout_chunks(layout, 0), pp)


def layers_per_stage(num_layers: int, parallel: Parallel) -> tuple[int, ...]:
    """Split layers over stages: as stated, else as the frameworks do."""
    pp = parallel.pp or 1
    if parallel.pp_layout:
        stages = layout_layers(parallel.pp_layout, pp)
        if sum(stages) == num_layers:
            return stages
    return per_stage(default_chunks(num_layers, pp, 1), pp)


def balanced_layers(model: Model, pp: int) -> tuple[int, ...]:
    """Split layers as nanotron does: a stage takes blocks until their cost passes its share.

    A layer costs ``4 h h + 3 f h``, the head, a block behind them, ``V h``: build_model in
    src/nanotron/models/base.py, get_block_compute_costs in llama.py.
    """
    num_layers, hidden = _known(model.layers, "number of layers"), _known(model.hidden, "hidden")
    layer = 4 * hidden + 3 * _known(model.ffn, "feed-forward size")
    share = (num_layers * layer + _known(model.vocab, "vocabulary")) / pp
    layers, stage = [0] * pp, 0
    for number in range(1, num_layers + 1):
        layers[stage] += 1
        stage += number * layer > (stage + 1) * share
    return tuple(layers)


def expert_mesh(record: Record, support: SupportTraits) -> tuple[int, int]:
    """Ranks that share out the experts (ep), and that split each of them (etp), as published.

    Unstated etp is what the framework takes; without experts both are what tp brings with it.
    """
    parallel = record.parallel
    tp, ep = parallel.tp or 1, parallel.ep or 1
    if not record.model.moe:
        return 1, tp
    etp = parallel.etp or int(support.usual_etp(tp, ep))
    ranks = tp * (parallel.cp or 1) * (parallel.dp or 1)
    if ranks % (ep * etp):
        text = f"experts on ep {ep} x etp {etp} ranks do not divide the {ranks} ranks of a stage"
        raise CannotEstimateError(text)
    return ep, etp


def _check_runnable(record: Record) -> None:
    if not record.complete:
        raise CannotEstimateError("configuration not published in full")
    if record.task == "lora" and not record.lora:
        raise CannotEstimateError("adapters not published")
    if record.parallel.recompute is None:
        raise CannotEstimateError("recomputation not published")


def _check_sound(problems: Iterable[str]) -> None:
    if found := "; ".join(problems):
        raise CannotEstimateError(found)


def recomputed_layers(record: Record, layers: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Layers per stage under a policy of recomputation; every n-th in full is a step."""
    parallel = record.parallel
    if parallel.recompute == "selective" and (step := parallel.recompute_step):
        return {"full": tuple(number // step for number in layers)}
    return {parallel.recompute or "none": layers}


def _degrees(record: Record, support: SupportTraits) -> dict[str, int]:
    """Degrees of the axes; CannotEstimateError where they do not multiply to so many GPUs."""
    parallel = record.parallel
    dp = _known(parallel.dp, "data-parallel degree")
    cuts = {name: getattr(parallel, name, None) or 1 for name in MODEL_PARALLEL_DEGREES}
    degrees = {"dp": dp, **cuts}
    if gpus_of(degrees) != record.hardware.gpus:
        raise CannotEstimateError("degrees do not multiply to the number of GPUs")
    ep, etp = expert_mesh(record, support)
    return {**degrees, "ep": ep, "etp": etp}


def to_strategy(record: Record, support: SupportTraits) -> Strategy:
    """Return the layout of a record; CannotEstimateError where it cannot be expressed."""
    parallel = record.parallel
    layers = layers_per_stage(_known(record.model.layers, "number of layers"), parallel)
    if record.framework == "nanotron" and not parallel.pp_layout:
        layers = balanced_layers(record.model, parallel.pp or 1)
    micro_batch = _known(parallel.micro_batch, "micro-batch")
    degrees = _degrees(record, support)
    global_batch = _known(parallel.global_batch, "global batch")
    num, rest = divmod(global_batch, degrees["dp"] * micro_batch)
    if rest or num == 0:
        raise CannotEstimateError("batch does not divide into micro-batches")
    if (offload := parallel.offload or "none") not in OFFLOADS:
        raise CannotEstimateError(f"this offload is not modelled: {offload}")
    zero = parallel.zero if parallel.zero is not None else record.assumed.zero
    offloaded = (parallel.offloaded_layers or 0,) * degrees["pp"]
    under = {**recomputed_layers(record, layers), "offloaded": offloaded}
    values: dict[str, Any] = degrees | split_values(layers, under)
    return Strategy(
        **values,
        dp_replicate=parallel.dp_replicate or 1,
        vpp=parallel.vpp or record.assumed.vpp or 1,
        zero_stage=_known(zero, "ZeRO stage"),
        micro_batch=micro_batch,
        num_micro_batches=num,
        sequence_parallel=bool(parallel.sp or record.assumed.sp) and degrees["tp"] > 1,
        offload=offload,
    )


def _assumptions(record: Record) -> list[str]:
    notes = []
    if record.parallel.recompute_step:
        notes.append("selective recomputation estimated as full in every second layer")
    if record.assumed.zero is not None:
        notes.append(f"ZeRO stage not published; {record.assumed.zero} assumed")
    if imbalance := imbalance_fraction(record):
        notes.append(
            f"natural routing: the busiest rank of experts has {imbalance:.0%} more tokens"
        )
    return notes


def imbalance_fraction(record: Record) -> float:
    """What is assumed of a mixture's routing: the usual imbalance, none where it was balanced."""
    is_natural = record.model.moe is not None and record.runtime.routing == "natural"
    return USUAL_IMBALANCE_FRACTION if is_natural else 0.0


def to_run(record: Record) -> Run:
    """Turn a record into the inputs of ``estimate``.

    Raises CannotEstimateError with the reason where the record is incomplete or uses something
    that is not modelled.
    """
    _check_runnable(record)
    _check_sound(contradictions(record))
    setup = to_setup(record)
    cluster = to_cluster(record.hardware)
    model = to_model(record.model)
    traits = with_adapters(setup.traits, record, model)
    strategy = to_strategy(record, traits.support)
    if strategy.zero_stage == 3 and 3 not in traits.support.zero_stages:
        raise CannotEstimateError(f"fully sharded {traits.name} is not modelled")
    try:
        peak_flops_per_s(cluster.accelerator, record.precision)
    except ValueError as error:
        raise CannotEstimateError(str(error)) from None
    _check_sound(impossible(record, cluster.node))
    job = JobSpec(
        global_batch=_known(record.parallel.global_batch, "global batch"),
        seq_len=model.max_seq_len,
        precision=record.precision,
        mtp_layers=record.mtp_layers,
        imbalance_fraction=imbalance_fraction(record),
    )
    return Run(
        context=Context(
            model=model,
            job=job,
            cluster=cluster,
            traits=traits,
            is_tuned=record.source.by == "maker",
        ),
        strategy=strategy,
        notes=(*setup.notes, *_assumptions(record)),
    )
