"""Rules about experts, attention, recomputation, optimizer, overlap and the environment."""

from functools import partial

from planner.formats.megatron.options import MTP, SP
from planner.formats.megatron.states import (
    AWARE,
    CAPACITY,
    CONNECTIONS,
    FP32_GRADIENTS,
    LAYER_WISE,
    MAIN_GRADIENTS,
    MOMENTS,
    PADS,
)
from planner.formats.megatron.view import ARGUMENTS, CONFIG, MegatronView
from planner.formats.rules import Refused, Rules, Violations
from planner.formats.settings import as_number

METHOD, UNIT = "--recompute-method", "--recompute-num-layers"
GRANULARITY, MODULES = "--recompute-granularity", "--recompute-modules"
OFFLOADING, OFFLOADED = "--fine-grained-activation-offloading", "--offload-modules"
SHARDED, GATHER = "--use-distributed-optimizer", "--overlap-param-gather"
FSDP, FSDP2 = "--use-megatron-fsdp", "--use-torch-fsdp2"
DISPATCHER = "--moe-token-dispatcher-type"
EXCHANGE = "--overlap-moe-expert-parallel-comm"
RECOMPUTABLE = "core_attn, moe_act, layernorm, mla_up_proj, mlp, moe, shared_experts, gdn_norm_out"
OFFLOADABLE = (
    "core_attn, attn_proj, expert_fc1, fused_group_mlp, moe_act, attn_norm, mlp_norm, qkv_linear"
)
# Ways of balancing that go with dropped tokens.
_LOSSES = ("aux_loss", "seq_aux_loss", "global_aux_loss", "none")
_BALANCING = "--moe-router-load-balancing-type"
_BOTH = f"{ARGUMENTS}, {CONFIG}"
_OPTIMIZER = "megatron/core/optimizer/optimizer_config.py"
_WRAPPED = "megatron/core/distributed/fsdp/mcore_fsdp_adapter.py, when the model is wrapped"

rule = Rules(MegatronView)
in_arguments, in_config = partial(rule, ARGUMENTS), partial(rule, CONFIG)


def _unknown(modules: tuple[str, ...], allowed: str) -> Refused:
    """Modules that are not among those of a text."""
    known = allowed.split(", ")
    return {f"unknown {each}; allowed are {allowed}": each not in known for each in modules}


def _needs(missing: Refused) -> Refused:
    """All that is missing as one violation."""
    found = ", ".join(name for name, is_so in missing.items() if is_so)
    return {f"needs {found}": found}


in_config(
    "--moe-router-topk",
    "single_expert_needs_pre_softmax",
    "1 needs --moe-router-pre-softmax",
    # The softmax over one chosen expert has no gradient.
    lambda file: (
        file.number("--moe-router-topk") == 1
        and file.router_score == "softmax"
        and not file.flag("--moe-router-pre-softmax")
        and "sinkhorn" not in file.words(_BALANCING)
    ),
)


@in_config()
def capacity_has_a_factor_and_losses(file: MegatronView) -> Violations:
    """Experts are padded to a capacity, and tokens are dropped beside balancing losses only."""
    factor = as_number(file[CAPACITY])
    has_factor = factor is not None and factor >= 0
    if file.flag(PADS) and not has_factor:
        yield PADS, f"needs {CAPACITY}"
    others = [each for each in file.words(_BALANCING) if each not in _LOSSES]
    if has_factor and others:
        yield CAPACITY, f"needs {_BALANCING} of {', '.join(_LOSSES)}; given {', '.join(others)}"


in_config(
    "--moe-router-enable-expert-bias",
    "balancing_offsets_need_sigmoid",
    "needs --moe-router-score-function sigmoid or sqrtsoftplus; given {file.router_score}",
    lambda file: file.router_score not in ("sigmoid", "sqrtsoftplus"),
    on="--moe-router-enable-expert-bias",
)
in_config(
    "--moe-shared-expert-overlap",
    "shared_expert_overlap_needs_exchange",
    "needs --moe-token-dispatcher-type alltoall or flex; given allgather",
    lambda file: (
        file.has("--moe-shared-expert-intermediate-size") and file.word(DISPATCHER) == "allgather"
    ),
    on="--moe-shared-expert-overlap",
)
in_arguments(
    "--group-query-attention",
    "latent_attention_excludes_groups",
    "cannot stand beside --multi-latent-attention",
    lambda file: file.flag("--multi-latent-attention"),
    on="--group-query-attention",
)
in_config(
    "--squared-relu",
    "squared_relu_excludes_fusion",
    "needs --no-bias-gelu-fusion or --disable-bias-linear",
    lambda file: not file["--no-bias-gelu-fusion"] and not file["--disable-bias-linear"],
    on="--squared-relu",
)


@in_arguments(MTP)
def mtp_shifts_positions(file: MegatronView) -> Refused:
    """Further tokens are shifted: positions are rotary, or there are none."""
    kind, count = file.word("--position-embedding-type"), file.number(MTP)
    is_rotary = file.flag("--use-rotary-position-embeddings") or kind in ("rope", "none")
    text = f"{count} needs --position-embedding-type rope or none; given {kind}"
    return {text: count and not is_rotary}


rule.unenforced(
    "megatron/core/transformer/multi_token_prediction.py, in the first step",
    "--recompute-num-layers",
    "mtp_recomputes_single_layers",
    "must be 1 beside --mtp-num-layers; given {given}",
    lambda file: (
        bool(file.number(MTP))
        and file.granularity == "full"
        and file.word("--recompute-method") == "uniform"
        and file.number("--recompute-num-layers") not in (None, 1)
    ),
)


@in_config(GRANULARITY)
def full_recompute_is_complete(file: MegatronView) -> Refused:
    """Full recomputation is told how and how many layers."""
    missing = [option for option in (METHOD, UNIT) if option not in file.settings]
    return {f"full needs {' and '.join(missing)}": file.granularity == "full" and missing}


@rule.unenforced(f"{CONFIG}: the layers ask for recompute_granularity alone")
def recompute_has_a_granularity(file: MegatronView) -> list[str]:
    """Nothing is recomputed without --recompute-granularity full or selective."""
    found = [option for option in (METHOD, UNIT, MODULES) if option in file.settings]
    is_open = GRANULARITY in file.settings or file.flag("--recompute-activations")
    return [] if is_open else found[:1]


rule(
    _BOTH,
    name="selective_recompute_takes_modules",
    holds="Belongs to full recomputation; selective takes --recompute-modules.",
    when=lambda file: file.having(METHOD, UNIT)[:1] if file.granularity == "selective" else [],
)


@in_config(MODULES)
def recompute_modules_exist(file: MegatronView) -> Refused:
    """Only what the model has and the recipe allows can be recomputed."""
    modules = file.words(MODULES) if file.granularity == "selective" else ()
    is_delayed = file.has("--fp8-format") and file.word("--fp8-recipe") == "delayed"
    has_shared = file.has("--moe-shared-expert-intermediate-size")
    grouped, latent = "--moe-grouped-gemm", "--multi-latent-attention"
    delayed, overlap = "fp8 with delayed scaling", "--moe-shared-expert-overlap"
    refused = {
        f"moe_act needs {grouped}": not file[grouped],
        f"moe_act cannot stand beside {delayed}": is_delayed and file.flag(grouped),
        f"mla_up_proj needs {latent}": not file[latent],
        f"shared_experts cannot stand beside {overlap}": file.flag(overlap) and has_shared,
        f"layernorm cannot stand beside {delayed}": is_delayed,
    }
    named = {what: is_so and what.partition(" ")[0] in modules for what, is_so in refused.items()}
    return {**named, **_unknown(modules, RECOMPUTABLE)}


rule(
    _BOTH,
    "--distribute-saved-activations",
    "distributed_activations_need_full",
    "needs tensor parallelism without --sequence-parallel and --recompute-granularity full",
    lambda file: file.tp == 1 or file.flag(SP) or file.granularity != "full",
    on="--distribute-saved-activations",
)


@in_config("--cpu-offloading-num-layers")
def host_layers_stand_alone(file: MegatronView) -> Refused:
    """Activations go to the host without stages and without recomputation."""
    count, layers = file.number("--cpu-offloading-num-layers") or 0, file.num_layers
    refused = {
        f"needs --pipeline-model-parallel-size 1; given {file.pp}": file.pp > 1,
        "cannot stand beside recomputation": file.granularity,
        f"must be below the {layers} layers; given {count}": layers and not 0 <= count < layers,
    }
    return refused if count else {}


@rule(_BOTH, OFFLOADING, on=OFFLOADING)
def fine_grained_offload_setup(file: MegatronView) -> Refused:
    """Offloading of modules needs Transformer Engine's first way of it, and modules."""
    is_set = not file.is_script or file.variable("NVTE_CPU_OFFLOAD_V1") == "1"
    return {
        "needs NVTE_CPU_OFFLOAD_V1=1 in the environment": not is_set,
        f"needs {OFFLOADED}": not file.words(OFFLOADED),
    }


@in_config(OFFLOADED, on=OFFLOADING)
def offload_modules_exist(file: MegatronView) -> Refused:
    """Only modules that can be offloaded are, and attention's projection with its core."""
    modules = file.words(OFFLOADED)
    lacks_core = "attn_proj" in modules and "core_attn" not in modules
    lacking = {"attn_proj needs core_attn, whose output it saves": lacks_core}
    return {**_unknown(modules, OFFLOADABLE), **lacking}


@in_arguments("--optimizer-cpu-offload", on="--optimizer-cpu-offload")
def optimizer_offload_setup(file: MegatronView) -> Refused:
    """The offloaded optimizer is the precision-aware one."""
    recipe = file.word("--fp8-recipe")
    is_scaled_else = file.flag("--fp8-param-gather") and recipe != "delayed"
    with_gather = f"with --fp8-param-gather needs --fp8-recipe delayed; given {recipe}"
    return {f"needs {AWARE}": not file[AWARE], with_gather: is_scaled_else}


@rule(_OPTIMIZER, AWARE, on=AWARE)
def precision_aware_needs_sharded_adam(file: MegatronView) -> Refused:
    """The precision-aware optimizer is Adam under the distributed optimizer."""
    is_adam, given = file.optimizer == "adam", f"given {file.optimizer}"
    return {
        f"needs --optimizer adam; {given}": not is_adam,
        f"needs {SHARDED}": not file.is_sharded,
    }


@rule(_OPTIMIZER)
def small_states_need_precision_aware(file: MegatronView) -> list[str]:
    """Needs --use-precision-aware-optimizer; given {given}."""
    options = (MAIN_GRADIENTS, "--main-params-dtype", *MOMENTS)
    small = [option for option in options if file.word(option) != "fp32"]
    return [] if file.flag(AWARE) else small


in_arguments(
    MAIN_GRADIENTS,
    "main_gradients_are_accumulated",
    f"must be fp32 beside {FP32_GRADIENTS}; given {{given}}",
    lambda file: (
        file.flag("--bf16") and file.flag(FP32_GRADIENTS) and file.word(MAIN_GRADIENTS) != "fp32"
    ),
)


@rule.unenforced(
    "megatron/core/distributed/distributed_data_parallel.py and layer_wise_optimizer.py, "
    "when the model is wrapped",
    "--num-distributed-optimizer-instances",
)
def instances_need_sharding(file: MegatronView) -> Refused:
    """There are replicas of a sharding group where there is one, and it shares out elements."""
    count, name = file.instances, file.optimizer
    refused = {
        f"needs {SHARDED}; given {count}": not file.is_sharded,
        f"must be 1 with --optimizer {name}; given {count}": name in LAYER_WISE,
    }
    return refused if count > 1 else {}


@in_arguments(GATHER, on=GATHER)
def gather_overlap_needs_reduction_overlap(file: MegatronView) -> Refused:
    """Gathered weights are overlapped where sharded gradients are."""
    return {
        f"needs {SHARDED} or {FSDP}": not file.is_sharded,
        "needs --overlap-grad-reduce": not file["--overlap-grad-reduce"],
    }


in_arguments(
    "--overlap-param-gather-with-optimizer-step",
    "step_overlap_needs_chunks",
    f"needs {SHARDED}, {GATHER} and several chunks per stage; given {{file.vpp}}",
    lambda file: file.vpp == 1 or not file[GATHER] or not file[SHARDED],
    on="--overlap-param-gather-with-optimizer-step",
)


@in_arguments(FSDP, on=FSDP)
def megatron_fsdp_setup(file: MegatronView) -> Refused:
    """Megatron-FSDP has its own checkpoints and wants several device queues."""
    form = file.word("--ckpt-format")
    return {
        f"needs --ckpt-format fsdp_dtensor; given {form}": form != "fsdp_dtensor",
        f"needs {CONNECTIONS} unset or above 1; given 1": file.connections == "1",
    }


rule(
    _WRAPPED,
    FSDP,
    "megatron_fsdp_takes_all_processes",
    "needs --pipeline-model-parallel-size 1; given {file.pp}",
    # Its mesh lies over all processes.
    lambda file: file.pp > 1,
    on=FSDP,
)
in_arguments(
    FSDP,
    "megatron_fsdp_optimizer",
    "needs --optimizer adam or sgd; given {file.optimizer}",
    lambda file: file.optimizer not in ("adam", "sgd"),
    on=FSDP,
)
rule.unenforced(
    _WRAPPED,
    "--fsdp-double-buffer",
    "double_buffer_excludes_batches",
    "cannot stand beside --overlap-moe-expert-parallel-comm",
    # That needs more than two buffers of a layer.
    lambda file: file.flag("--fsdp-double-buffer") and file.flag(EXCHANGE),
    on=FSDP,
)


@in_arguments(FSDP2, on=FSDP2)
def torch_fsdp_setup(file: MegatronView) -> Refused:
    """PyTorch's FSDP takes the place of stages, expert parallelism and sharded states."""
    fused, tied = "--no-gradient-accumulation-fusion", "--untie-embeddings-and-output-weights"
    missing = {
        "--pipeline-model-parallel-size 1": file.pp > 1,
        "--expert-model-parallel-size 1": file.ep > 1,
        f"no {SHARDED}": file.flag(SHARDED),
        f"{CONNECTIONS} unset or above 1": file.connections == "1",
        fused: not file[fused],
        tied: not file[tied],
    }
    return _needs(missing)


_ONE = "must be 1 with tensor or context parallelism before Blackwell"


in_arguments(
    CONNECTIONS,
    "connections_keep_order",
    f"{_ONE}; given {{file.connections}}",
    lambda file: file.needs_one_queue and file.connections not in (None, "1"),
)


in_arguments(
    CONNECTIONS,
    "connections_are_set",
    (f"{_ONE}; not set in this file: Megatron stops where the environment does not set it either"),
    lambda file: file.needs_one_queue and file.connections is None,
    severity="warning",
)


@in_config(EXCHANGE, on=EXCHANGE)
def expert_overlap_setup(file: MegatronView) -> Refused:
    """Overlapped expert exchange needs experts apart, chunks, 16 bits, and layers not repeated."""
    missing = {
        "--expert-model-parallel-size above 1": file.ep == 1,
        "--moe-token-dispatcher-type alltoall or flex": file.word(DISPATCHER) == "allgather",
        "several chunks per stage": file.pp > 1 and file.vpp == 1,
        "no full recomputation": file.granularity == "full",
        f"no moe among {MODULES}": "moe" in file.words(MODULES),
        "--bf16 or --fp16": not (file.flag("--bf16") or file.flag("--fp16")),
        f"at most 1 of {MTP}": (file.number(MTP) or 0) > 1,
        "no --moe-shared-expert-overlap": file.flag("--moe-shared-expert-overlap"),
    }
    return _needs(missing)


in_config(
    "--delay-wgrad-compute",
    "delayed_gradients_need_exchange",
    "needs --overlap-moe-expert-parallel-comm",
    lambda file: not file[EXCHANGE],
    on="--delay-wgrad-compute",
)


@rule(_BOTH)
def one_precision(file: MegatronView) -> Violations:
    """Weights and products have one precision each."""
    for option, other in (("--fp16", "--bf16"), ("--fp8-format", "--fp4-format")):
        if file.has(option) and file.has(other):
            yield option, f"cannot stand beside {other}"
