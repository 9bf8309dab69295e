"""Megatron-Bridge's keys, the Megatron options that say the same, and plans in overrides of them.

The decisions are those of Megatron's table; here stands how Bridge says them otherwise. Sources:
docs/megatron-lm-to-megatron-bridge.md, training/mixed_precision.py; ConfigContainer with ``model``
a TransformerConfig of Megatron-Core, whose ``validate`` holds data of a recipe of adapters, packed
offline, to micro-batches of one sequence (training/config.py). Of the part ``peft``, beside which
matrices adapters stand and of what rank: peft/lora.py.
"""

import csv
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib import resources

from planner.cost.context import Context
from planner.formats.decision import (
    KeyValue,
    Table,
    To,
    key_values,
    nothing,
    reasons,
    refusals,
    several,
    writes,
)
from planner.formats.format import Located
from planner.formats.megatron import mapping, states
from planner.formats.megatron.model import runtime_choices, shape_reasons
from planner.formats.megatron.options import (
    CHUNKS,
    ETP,
    MTP,
    PARTS,
    PATTERN,
    attributes,
    load_options,
    of_pattern,
    row,
    typed,
    words_of,
)
from planner.formats.megatron.states import BF16_GRADIENTS, SHARDING
from planner.formats.megatron.states import FP32_GRADIENTS as ACCUMULATED
from planner.formats.megatron.states import PRECISIONS as WORDS
from planner.formats.settings import Settings, given
from planner.spec.model import ModelSpec
from planner.spec.strategy import Strategy
from planner.spec.training import FULL, PROJECTIONS, Target, Training

VIRTUAL = "model.virtual_pipeline_model_parallel_size"
LAYOUT = "model.pipeline_model_parallel_layout"
LAYERS = "model.hybrid_layer_pattern"
PRECISION = "mixed_precision"
# Stands in a configuration of mixed precision; ``ddp.grad_reduce_in_fp32`` is set from it.
FP32_GRADIENTS = "mixed_precision.grad_reduce_in_fp32"
SHARDED = ("ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer")
# What every recipe sets; of one that is not known nobody knows how.
DEGREES = tuple(
    f"model.{name}_parallel_size"
    for name in ("tensor_model", "pipeline_model", "context", "expert_model", "expert_tensor")
)
# Stands among the settings where the command names a recipe, which sets what nothing overrides.
NAMED = "--recipe"
# Modules of Megatron's layers by what they project.
NAMES: Mapping[str, tuple[Target, ...]] = {
    name: PROJECTIONS[name] for name in ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
}
PEFT, RANK, MODULES, DROPOUT = "peft", "peft.dim", "peft.target_modules", "peft.dropout"
SHARES = "peft.share_expert_adapters"
SPECS = "dataset.offline_packing_specs"
CLASS = "megatron.bridge.peft.lora.LoRA"
NULL = ("null", "none", "")
# Switches of LoRA that plans do not price.
UNPRICED = {
    "peft.a2a_experimental": "other collectives of adapters",
    "peft.sequence_parallel_input_regather": "an adapter's input is gathered twice",
    "peft.exclude_modules": "adapters of all modules but some",
    "peft.normalize_moe_lora": "a smaller rank beside experts",
    "peft.experts_shared_outer_loras": "adapters of experts of which one matrix is shared",
}
# Those that decide something; of several for one option messages name the first.
KEYS = """
model.tensor_model_parallel_size model.sequence_parallel model.context_parallel_size
model.expert_model_parallel_size model.expert_tensor_parallel_size
model.tensor_parallel_num_weight_shards model.expert_tensor_parallel_num_weight_shards
dist.use_tp_pp_dp_mapping
model.pipeline_model_parallel_size model.virtual_pipeline_model_parallel_size
model.mtp_num_layers
model.pipeline_model_parallel_layout model.hybrid_layer_pattern
model.num_layers_in_first_pipeline_stage
model.num_layers_in_last_pipeline_stage model.account_for_embedding_in_pipeline_split
model.account_for_loss_in_pipeline_split train.micro_batch_size train.global_batch_size
model.seq_length dataset.seq_length model.recompute_granularity model.recompute_method
model.recompute_num_layers model.recompute_modules model.cpu_offloading_num_layers
optimizer.optimizer optimizer.sgd_momentum optimizer.use_distributed_optimizer
ddp.use_distributed_optimizer dist.use_megatron_fsdp ddp.use_megatron_fsdp
ddp.data_parallel_sharding_strategy checkpoint.ckpt_format model.init_model_with_meta_device
ddp.num_distributed_optimizer_instances optimizer.optimizer_cpu_offload
optimizer.optimizer_offload_fraction optimizer.use_precision_aware_optimizer
optimizer.exp_avg_dtype optimizer.exp_avg_sq_dtype
comm_overlap.overlap_moe_expert_parallel_comm comm_overlap.delay_wgrad_compute
model.moe_token_dispatcher_type model.moe_flex_dispatcher_backend
model.moe_permute_fusion_into_hybridep model.cuda_graph_impl model.cuda_graph_scope
model.moe_expert_capacity_factor model.moe_pad_expert_input_to_capacity
model.num_layers model.hidden_size model.ffn_hidden_size model.num_attention_heads
model.num_moe_experts
"""
# What Megatron-LM's arguments call a field of the model; all others as Bridge does.
_NAMES = {
    "num_moe_experts": "num_experts",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
}


def option_of(key: str) -> str:
    """Return the name that Megatron-LM's option for a key would have."""
    attribute = key.rpartition(".")[2]
    return "--" + _NAMES.get(attribute, attribute).replace("_", "-")


# Where several keys say the same, the last one in a file counts.
OPTIONS: Mapping[str, str] = {key: option_of(key) for key in KEYS.split()}
_KEYS = {option: key for key, option in reversed(list(OPTIONS.items()))}
# Names of mixed precision by precision; training/mixed_precision.py has none for fp4.
PRECISIONS: Mapping[str, str] = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
    "fp8_block": "bf16_with_fp8_subchannel_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
}
GROUPS = (
    "rng rerun_state_machine train validation model optimizer ddp scheduler dataset logger "
    "tokenizer checkpoint dist ft straggler nvrx_straggler profiling peft comm_overlap "
    "mixed_precision inprocess_restart tensor_inspect"
)
# Fields that only Bridge's own models have.
MODELS = (
    "share_embeddings_and_output_weights seq_len_interpolation_factor should_pad_vocab "
    "scatter_embedding_sequence_parallel parallel_output rope_scaling transformer_layer_spec "
    "hf_model_id"
)


def is_known(key: str) -> bool:
    """Return True if a key may be in Bridge's configuration, as far as it can be known."""
    group, _, attribute = key.partition(".")
    if group not in GROUPS.split():
        return False
    if key in OPTIONS or group != "model" or not attribute:
        return True
    name = attribute.partition(".")[0]
    return name in attributes() or name in MODELS.split()


def spelled(text: str) -> str:
    """A text about Megatron's options in Bridge's keys, where it has one."""
    return re.sub(
        r"--[a-z0-9-]+",
        lambda found: _KEYS.get(found[0], found[0]),
        text,
    )


def switch(text: str) -> bool:
    """True or false; ValueError says that it is neither."""
    if text.lower() not in ("true", "false"):
        raise ValueError(f"must be true or false; given {text[:60]!r}")
    return text.lower() == "true"


def option_value(key: str, text: str) -> object:
    """The value of the Megatron option a key stands for; False: as without it.

    Recipes train multi-token prediction where nothing is said: null is none of it.
    """
    option = load_options()[OPTIONS[key]]
    text = text.strip("'\"")
    if text.lower() in NULL:
        return 0 if OPTIONS[key] == MTP else False
    if not option.takes_values:
        return switch(text)
    listed = text.strip("[]").replace(" ", "").split(",")
    return typed(option, listed if option.nargs else [text])


def as_options(settings: Settings) -> dict[str, Located]:
    """The settings of a file by Megatron's options, which take a layout or a number of chunks.

    Those without a value are a recipe's, or a variable's, and not known.
    """
    found = {OPTIONS[key]: each for key, each in settings.items() if key in OPTIONS}
    found = {option: each for option, each in found.items() if each.value is not False}
    found |= translated(settings)
    found |= of_pattern(found)
    if given(settings, LAYOUT):
        found.pop(OPTIONS[VIRTUAL], None)
    return found


def translated(settings: Settings) -> dict[str, Located]:
    """The settings of a file by Megatron's options, each with the file's own key.

    Recipes share out the optimizer where not both keys are false (training/config.py).
    """
    known = {key: each for key, each in settings.items() if each.value is not None}
    on = {key: each for key, each in known.items() if each.value is not False}
    found = {OPTIONS[key]: each for key, each in on.items() if key in OPTIONS}
    if any(key not in known or key in on for key in SHARDED):
        found.setdefault(OPTIONS[SHARDED[0]], Located(value=True, key=SHARDED[0]))
    place, fp32 = known.get(PRECISION), known.get(FP32_GRADIENTS)
    for precision, name in PRECISIONS.items():
        if place is not None and place.value == name:
            for option, value in WORDS[precision].items():
                found[option] = replace(place, value=value)
    if fp32 is not None:
        found[ACCUMULATED if fp32.value else BF16_GRADIENTS] = replace(fp32, value=True)
    if groups := settings.get("model.num_query_groups"):
        found["--num-query-groups"] = groups
        found["--group-query-attention"] = replace(groups, value=True)
    return found


RELEASE = "0.6.2"


@cache
def recipes() -> Sequence[Mapping[str, str]]:
    """Rows of the table: the recipe, its model's sizes by the names of a model file, its settings.

    Settings are those that decide something, as overrides that say the same. Recipes of full
    fine-tuning stand behind those of pretraining, without sizes.
    """
    path = resources.files(__package__).joinpath("recipes.csv")
    return tuple(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def brought(recipe: str) -> dict[str, str]:
    """Overrides that say what a recipe sets; none of one that is not known."""
    said = next((row["settings"] for row in recipes() if row["recipe"] == recipe), "")
    return dict(word.split("=", 1) for word in said.split())


@cache
def in_recipes() -> frozenset[str]:
    """Keys that rows of recipes list wherever a recipe sets them."""
    return frozenset(key for row in recipes() for key in brought(row["recipe"]))


def recipe_of(model: ModelSpec, training: Training = FULL) -> str:
    """The recipe of the model, of several the one for sequences as long; empty: there is none.

    Models that differ in how positions are scaled, not in sizes, share recipes.
    """
    own = vars(model) | (vars(model.moe) if model.moe else {})
    sizes = recipes()[0].keys() - {"recipe", "adapters", "max_seq_len", "settings"}
    wanted = {key: str(own.get(key, "")) for key in sizes}
    fitting = [row for row in recipes() if row.items() >= wanted.items()]
    if not fitting:
        return ""
    nearest = min(fitting, key=lambda row: row["max_seq_len"] != str(model.max_seq_len))
    return nearest["adapters" if training.is_frozen else "recipe"]


def unbuilt(context: Context) -> Iterator[str]:
    """Return why no recipe builds the model: there is none, and Megatron's GPT model is another."""
    found = () if recipe_of(context.model) else shape_reasons(context)
    return (f"{reason}, and Megatron-Bridge {RELEASE} has no recipe of it" for reason in found)


TITLE = "Megatron-Bridge"
_CAPACITY = f"{states.CAPACITY} {states.PADS}"
_EXCHANGE = "--overlap-moe-expert-parallel-comm --delay-wgrad-compute"
TABLE: Table = (
    *mapping.TABLE,
    row(
        "expert_exchange", _EXCHANGE, partial(runtime_choices, among=_EXCHANGE), states.of_exchange
    ),
    row("", _CAPACITY, partial(runtime_choices, among=_CAPACITY), nothing),
)
_REFUSALS = refusals(__package__)
# Options that are stated only where a plan needs them, the last ones of which a recipe says by
# itself.
BESIDE = (
    f"{PATTERN} --ckpt-format {states.AWARE} {' '.join(states.MOMENTS)} --mtp-num-layers "
    f"{_EXCHANGE} {_CAPACITY} {states.WEIGHT_SHARDS} {states.EXPERT_SHARDS} "
    f"{states.DISPATCHER} {states.BACKEND} {states.FUSED} "
    f"{states.GRAPHS} --cuda-graph-modules --cuda-graph-scope"
)


def narrows(context: Context) -> Mapping[str, tuple[str, ...]]:
    """Features without those that layers of one part lack: models/hybrid/hybrid_provider.py."""
    if not PARTS.intersection(context.model.layer_pattern):
        return {}
    return {"features": tuple(name for name in context.traits.support.features if name != "vpp")}


def unsaid(context: Context, strategy: Strategy) -> Iterator[str]:
    """Yield why the plan cannot be expressed: every decision without an override."""
    yield from reasons(TABLE, context, strategy)
    for part in (_REFUSALS["unnamed"], states.REFUSALS["gradients"], _REFUSALS["layout"]):
        yield from part(context, strategy)


def problems(context: Context) -> Iterator[str]:
    """Yield what cannot be expressed whatever the layout: the model, precision and optimizer."""
    yield from unbuilt(context)
    for part in (states.REFUSALS["optimizer"], _REFUSALS["unnamed"], _REFUSALS["profile"]):
        yield from part(context)


_APART = "saved activations go to the host, weights do not"
_SHARDS = "'false' if zero_stage > 1 else None"
_REPEATS = (
    "any(selective_layers_per_stage) and '{}' in "
    "(traits.recompute.selected if recompute_modules is None else recompute_modules)"
)
# Overrides of recipe settings that contradict a plan, beside options. Beside Megatron-FSDP:
# megatron/bridge/perf_recipes/llama/gb200/llama3.py. Beside recomputation and offload:
# megatron/core/transformer; CUDA graphs of recipes hold layers or parts of them.
_CONTRADICTING: Sequence[tuple[tuple[str, ...], To]] = (
    (
        (SHARDING,),
        writes(
            {
                "ddp.fsdp_double_buffer": (
                    (
                        "None if zero_stage < 2 else 'true' if zero_stage == 3 and not (ep > 1 and "
                        "traits.overlap.expert_all_to_all_overlap == 'batches') else 'false'"
                    ),
                    "",
                ),
                "ddp.average_in_collective": (_SHARDS, ""),
                "ddp.keep_fp8_transpose_cache": (_SHARDS, ""),
                "model.gradient_accumulation_fusion": (_SHARDS, ""),
            }
        ),
    ),
    (
        ("--cpu-offloading-num-layers",),
        writes(
            {
                key: (f"'{value}' if any(offloaded_layers_per_stage) else None", why)
                for key, (value, why) in {
                    "model.cpu_offloading": ("true", _APART),
                    "model.cpu_offloading_weights": ("false", _APART),
                    "model.cuda_graph_impl": ("none", "no CUDA graph holds what is offloaded"),
                }.items()
            }
        ),
    ),
    (
        ("--recompute-granularity", "--recompute-modules"),
        writes(
            {
                "model.moe_shared_expert_overlap": (
                    f"'false' if {_REPEATS.format('shared_experts')} else None",
                    "the shared expert is recomputed",
                ),
                "model.cuda_graph_impl": (
                    (
                        f"'none' if any(recompute_layers_per_stage) or {_REPEATS.format('moe')} "
                        "else None"
                    ),
                    "no CUDA graph holds what is recomputed",
                ),
            }
        ),
    ),
)


def beside(
    context: Context, strategy: Strategy, changed: Container[str] | None = None
) -> Iterator[KeyValue]:
    """Yield overrides of recipe settings that contradict a plan, beside options that change."""
    for options, to in _CONTRADICTING:
        if changed is None or any(option in changed for option in options):
            yield from to(context, strategy)


def text_of(key: str, option: str, line: KeyValue | None, strategy: Strategy) -> str:
    """The value of an override; without a line what leaves it to none of the recipe's."""
    known = load_options()[option]
    if not known.takes_values:
        return "true" if line else "false"
    if line is None:
        own = {ETP: str(strategy.etp), SHARDING: "no_shard", CHUNKS: "null"}
        return own.get(option, known.default.removesuffix(".0") or "null")
    _, *words = words_of(option, line.value)
    if known.nargs:
        return f"[{','.join(words)}]"
    return f"'{words[0]}'" if key in (LAYOUT, LAYERS) else words[0]


_UNPACKED = "'{}' if micro_batch > 1 else None"
_ONE_SEQUENCE = "packed samples need micro-batches of one sequence"
# How samples fill sequences: packed if micro-batches have one, and what cp needs.
PACKING = writes(
    {
        f"{SPECS}.packed_sequence_size": (
            "job.seq_len if micro_batch == 1 else None",
            "samples are packed into whole sequences",
        ),
        f"{SPECS}.pad_seq_to_mult": (
            "None if micro_batch > 1 else 2 * cp if cp > 1 else 1",
            "",
        ),
        SPECS: (_UNPACKED.format("null"), _ONE_SEQUENCE),
        "dataset.enable_offline_packing": (_UNPACKED.format("false"), _ONE_SEQUENCE),
        "model.calculate_per_token_loss": (
            "'true' if cp > 1 else None",
            "a rank may see no token that counts",
        ),
        "ddp.average_in_collective": ("'false' if cp > 1 else None", ""),
    }
)
# Of a recipe of adapters, with reasons.
ADAPTERS = several(
    writes(
        {
            RANK: ("traits.training.rank", "{traits.training.words}"),
            MODULES: (
                lambda context, _: ",".join(
                    name
                    for name, targets in NAMES.items()
                    if {*targets} & {*context.traits.training.targets}
                ).join("[]"),
                "{traits.training.words}",
            ),
            DROPOUT: (
                "'0.1' if traits.kernels.adapter_dropout else None",
                "planned with a dropout of their inputs",
            ),
            SHARES: (
                "'false' if traits.kernels.expert_adapters == 'each' else None",
                "planned with adapters of each expert",
            ),
        }
    ),
    PACKING,
)


def gradients_apart(precision: str, gradient_bytes: float) -> Iterator[KeyValue]:
    """Overrides behind the name of a precision whose configuration has other gradients.

    A name has no fields: in its place comes a configuration that says the same, and gradients.
    """
    if gradient_bytes == (2 if precision == "fp16" else 4):
        return
    kind, half = ("fp16", "half") if precision == "fp16" else ("bf16", "bfloat16")
    dtype = f"{{_target_:torch.{half},_call_:false}}"
    # What the named configurations say of scaling: training/mixed_precision.py.
    scaled = {
        "fp8": "fp8=hybrid fp8_recipe=tensorwise first_last_layers_bf16=true "
        "num_layers_at_start_in_bf16=1 num_layers_at_end_in_bf16=1 fp8_param_gather=true",
        "fp8_block": "fp8=hybrid fp8_recipe=blockwise",
        "mxfp8": "fp8=e4m3 fp8_recipe=mxfp8 fp8_param_gather=true "
        "reuse_grad_buf_for_mxfp8_param_ag=true",
    }
    fields = {
        "_target_": "megatron.bridge.training.mixed_precision.MixedPrecisionConfig",
        kind: "true",
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        **dict(field.split("=") for field in scaled.get(precision, "").split()),
    }
    held, why = str(gradient_bytes == 4).lower(), f"gradients of {gradient_bytes:g} bytes"
    yield from key_values({f"{PRECISION}.{name}": (value, "") for name, value in fields.items()})
    yield KeyValue(key=FP32_GRADIENTS, value=held, why=why)
