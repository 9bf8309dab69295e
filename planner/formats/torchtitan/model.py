"""Which of torchtitan's configs has a model's shape, or the module that builds such a model."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from string import Template
from typing import Any

from planner.cost.context import Context
from planner.formats.decision import which
from planner.formats.torchtitan.keys import OWN_MODULE, Config, config_named, modules
from planner.spec.model import MlaSpec, ModelSpec

PRECISIONS = ("bf16", "mxfp8")
# Of a written module, whose model's sizes do not say them.
VARIABLES = {
    "ROPE_THETA": "base of the rotary positions, rope_theta of the model's config.json",
    "ROPE_SCALING_FACTOR": "factor of its rope_scaling of type llama3; 1 where it has none",
    "NORM_EPS": "epsilon of its norms, rms_norm_eps",
    "LEARNING_RATE": "highest learning rate",
}
LEFT_OPEN = {
    "learning rate and its schedule": "--optimizer.param_groups.0.optimizer_kwargs.lr "
    "--lr_scheduler.warmup_steps --lr_scheduler.decay_type",
    "clipping of gradients": "--training.max_norm",
    "checkpoints": "--checkpoint.enable --checkpoint.interval",
    "evaluation": "--validator.enable --validator.freq",
}
_KINDS = {"llama3": "plain", "qwen3": "qk_norm", "deepseek_v3": "mla", "gpt_oss": "sinks"}


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Where the model's sizes come from."""

    module: str
    config: str
    text: str = ""
    """Of the module, where torchtitan has no config."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What the user fills in for it."""
    left_open: Mapping[str, str] = field(default_factory=lambda: LEFT_OPEN)
    """What neither it nor the words of a plan say of a training."""


def chosen_config(context: Context) -> Chosen | None:
    """Return torchtitan's own config of the model, else a module for it; None: there is none."""
    named = _named(context)
    if named is not None and context.job.seq_len <= named.max_seq_len:
        module = next(name for name, own in modules().items() if named.name in own)
        positions = f"rotary positions of {named.rotary}, norms with an epsilon"
        given = f"{positions} of {named.norm_eps:g}, as the config has them"
        return Chosen(module=module, config=named.name, left_open=LEFT_OPEN | {given: "--config"})
    is_foreign = context.job.precision != "bf16" or list(_foreign_parts(context.model))
    return None if is_foreign else _written(context)


def unlike_configs(context: Context) -> Iterator[str]:
    """Why no config can be chosen."""
    model, precision, length = context.model, context.job.precision, context.job.seq_len
    named, has_config = _named(context), precision in PRECISIONS
    most = named.max_seq_len if named else length
    yield from which(
        {
            f"precision {precision}: torchtitan trains in bf16, in mxfp8 by its own config": (
                not has_config
            ),
            f"precision {precision}: torchtitan has no such config of {model.name}": (
                has_config and precision != "bf16"
            ),
            f"seq_len {length}: torchtitan's config {named and named.name} allows {most}": (
                length > most
            ),
        }
    )
    for part in _foreign_parts(model) if precision == "bf16" and length <= most else ():
        yield f"model {model.name}: {part}; no config of torchtitan has its shape either"


def _named(context: Context) -> Config | None:
    """The plainest config of the model and precision: the one with the shortest name."""
    fitting = [
        config_named(module, name)
        for module, own in modules().items()
        for name in own
        if _KINDS[module] == _kind(context.model) and not name.startswith("sft_")
    ]
    shape = _shape(context.model)
    fitting = [
        each
        for each in fitting
        if each.precision == context.job.precision
        and all(shape.get(key) == value for key, value in each.model.items())
    ]
    return min(fitting, key=lambda each: (len(each.name), each.name), default=None)


def _kind(model: ModelSpec) -> str:
    kinds = which(
        {
            "mla": model.mla,
            "sinks": model.family == "gpt-oss",
            "foreign": list(_foreign_parts(model)),
            "qk_norm": model.qk_norm == "head",
            "plain": not model.moe,
        }
    )
    return next(kinds, "foreign")


def _shape(model: ModelSpec) -> dict[str, Any]:
    """By the names in configs.json; those of the model's parts with a dot."""
    parts = {"moe": model.moe, "mla": model.mla}
    own = ((name, vars(part)) for name, part in parts.items() if part)
    return vars(model) | {
        f"{part}.{key}": value for part, values in own for key, value in values.items()
    }


def _foreign_parts(model: ModelSpec) -> Iterator[str]:
    """What the written module cannot build: it makes Llama- and Qwen-like decoders."""
    moe, biases = model.moe, {name for name, has in vars(model.biases).items() if has}
    has_other_norms = model.norm != "rmsnorm" or model.norms_per_layer != 2 or not model.final_norm
    is_other_mlp = not model.gated_mlp or model.activation not in ("silu", "swiglu")
    has_others = model.embedding_norm or model.extra_params or model.extra_params_per_layer
    is_special = model.parallel_block or model.sliding_window or model.position != "rope"
    is_mixed = moe and (
        moe.shared_ffn_size or moe.num_leading_dense_layers or moe.moe_layer_step > 1
    )
    return which(
        {
            f"{model.architecture} architecture, only decoders can be written": (
                model.architecture != "decoder"
            ),
            "its norms, only two rmsnorms per layer and a final one can be written": (
                has_other_norms
            ),
            "its MLP, only gated ones with silu can be written": is_other_mlp,
            "biases of linear layers": biases - {"norm"},
            "norms over all query heads at once": model.qk_norm == "full",
            "latent attention": isinstance(model.mla, MlaSpec),
            "parallel blocks, windowed attention or positions that are not rotary": is_special,
            str(model.special_blocks): model.special_blocks,
            "parameters outside the usual layers": has_others,
            "shared experts or dense layers beside mixtures": is_mixed,
            "biases of router or experts": moe and (moe.router_bias or moe.expert_bias),
        }
    )


def _written(context: Context) -> Chosen:
    model, moe = context.model, context.model.moe
    words = re.sub(r"\W+", "_", model.name.lower(), flags=re.ASCII).strip("_") or "model"
    name = f"{'m_' if words[0].isdigit() else ''}{words}_{model.num_layers}_layers"
    template = resources.files(__package__).joinpath("planner_config.py.txt")
    literals: dict[str, object] = {
        "flavor": name,
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_heads": model.num_heads,
        "num_kv_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "ffn_size": model.ffn_size,
        "vocab_size": model.vocab_size,
        "max_seq_len": max(model.max_seq_len, context.job.seq_len),
        "is_tied": model.tied_embeddings,
        "has_qk_norm": model.qk_norm == "head",
        "num_experts": moe.num_experts if moe else 0,
        "top_k": moe.top_k if moe else 0,
        "expert_ffn_size": moe.expert_ffn_size if moe else 0,
    }
    text = Template(template.read_text(encoding="utf-8")).substitute(
        {key: ascii(value) for key, value in literals.items()}, name=name
    )
    return Chosen(module=OWN_MODULE, config=name, text=text, variables=VARIABLES)
