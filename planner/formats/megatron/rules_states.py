"""Rules about recomputation, optimizer, precision, overlap and the environment."""

from collections.abc import Mapping

from planner.formats.megatron.decisions import AWARE, LAYER_WISE
from planner.formats.megatron.decisions_layout import HOST_LAYERS
from planner.formats.megatron.options import MTP
from planner.formats.megatron.rules_model import dispatcher
from planner.formats.megatron.runtime import CONNECTIONS
from planner.formats.megatron.view import MegatronView
from planner.formats.rules import Rules, Violations

SP = "--sequence-parallel"
GRANULARITY = "--recompute-granularity"
METHOD = "--recompute-method"
UNIT = "--recompute-num-layers"
MODULES = "--recompute-modules"
OFFLOAD = "--optimizer-cpu-offload"
SHARDED = "--use-distributed-optimizer"
FSDP = "--use-megatron-fsdp"
FSDP2 = "--use-torch-fsdp2"
GATHER = "--overlap-param-gather"
EXCHANGE = "--overlap-moe-expert-parallel-comm"
INSTANCES = "--num-distributed-optimizer-instances"
KNOWN_MODULES = (
    "core_attn",
    "moe_act",
    "layernorm",
    "mla_up_proj",
    "mlp",
    "moe",
    "shared_experts",
    "gdn_norm_out",
)
_OFFLOADED = "core_attn attn_proj expert_fc1 fused_group_mlp moe_act attn_norm mlp_norm qkv_linear"
OFFLOADED_MODULES = tuple(_OFFLOADED.split())
_ARGUMENTS = "megatron/training/arguments.py"
_CONFIG = "megatron/core/transformer/transformer_config.py"
_ADAPTER = "megatron/core/distributed/fsdp/mcore_fsdp_adapter.py"
_PARALLEL = "megatron/core/distributed/distributed_data_parallel.py and layer_wise_optimizer.py, "
_OPTIMIZER = "megatron/core/optimizer/optimizer_config.py"

rule = Rules(MegatronView)


def _granularity(file: MegatronView) -> str:
    if file.on("--recompute-activations"):
        return "selective"
    return file.word(GRANULARITY)


@rule(_CONFIG)
def full_recompute_is_complete(file: MegatronView) -> Violations:
    """Full recomputation is told how and how many layers."""
    missing = [option for option in (METHOD, UNIT) if option not in file.settings]
    if _granularity(file) == "full" and missing:
        yield GRANULARITY, f"full needs {' and '.join(missing)}"


@rule(f"{_CONFIG}: the layers ask for recompute_granularity alone", enforced=False)
def recompute_has_a_granularity(file: MegatronView) -> Violations:
    """Without one nothing is recomputed, whatever method and layers say."""
    found = [option for option in (METHOD, UNIT, MODULES) if option in file.settings]
    is_open = GRANULARITY in file.settings or file.on("--recompute-activations")
    if found and not is_open:
        yield found[0], f"nothing is recomputed without {GRANULARITY} full or selective"


@rule(f"{_ARGUMENTS}, {_CONFIG}")
def selective_recompute_takes_modules(file: MegatronView) -> Violations:
    """Selective recomputation holds for all layers."""
    found = [option for option in (METHOD, UNIT) if file.has(option)]
    if _granularity(file) == "selective" and found:
        yield found[0], "belongs to full recomputation; selective takes --recompute-modules"


@rule(_CONFIG)
def recompute_modules_exist(file: MegatronView) -> Violations:
    """Only what the model has and the recipe allows can be recomputed."""
    if _granularity(file) != "selective":
        return
    delayed = file.has("--fp8-format") and file.word("--fp8-recipe", "delayed") == "delayed"
    refused = {
        "moe_act": "needs --moe-grouped-gemm" * (not file.on("--moe-grouped-gemm")),
        "mla_up_proj": "needs --multi-latent-attention" * (not file.on("--multi-latent-attention")),
        "shared_experts": "cannot stand beside --moe-shared-expert-overlap"
        * file.on("--moe-shared-expert-overlap")
        * file.has("--moe-shared-expert-intermediate-size"),
        "layernorm": "cannot stand beside fp8 with delayed scaling" * delayed,
    }
    refused["moe_act"] = refused["moe_act"] or refused["layernorm"]
    for module in file.words(MODULES):
        if module not in KNOWN_MODULES:
            yield MODULES, f"unknown {module}; allowed are {', '.join(KNOWN_MODULES)}"
        elif refused.get(module):
            yield MODULES, f"{module} {refused[module]}"


@rule(f"{_ARGUMENTS}, {_CONFIG}")
def distributed_activations_need_full(file: MegatronView) -> Violations:
    """Saved inputs are shared out over tp ranks under full recomputation only."""
    option = "--distribute-saved-activations"
    if not file.on(option):
        return
    if file.tp == 1 or file.on(SP) or _granularity(file) != "full":
        yield option, f"needs tensor parallelism without {SP} and {GRANULARITY} full"


@rule(_CONFIG)
def host_layers_stand_alone(file: MegatronView) -> Violations:
    """Activations go to the host without stages and without recomputation."""
    count = file.number(HOST_LAYERS)
    if not count:
        return
    if file.pp > 1:
        yield HOST_LAYERS, f"needs --pipeline-model-parallel-size 1; given {file.pp}"
    if _granularity(file):
        yield HOST_LAYERS, "cannot stand beside recomputation"
    if file.num_layers and not 0 <= count < file.num_layers:
        yield HOST_LAYERS, f"must be below the {file.num_layers} layers; given {count}"


@rule(f"{_ARGUMENTS}, {_CONFIG}")
def fine_grained_offload_setup(file: MegatronView) -> Violations:
    """Offloading of modules needs Transformer Engine's first way of it, and modules."""
    option = "--fine-grained-activation-offloading"
    if not file.on(option):
        return
    if file.is_script and file.variable("NVTE_CPU_OFFLOAD_V1") != "1":
        yield option, "needs NVTE_CPU_OFFLOAD_V1=1 in the environment"
    if not file.words("--offload-modules"):
        yield option, "needs --offload-modules"


@rule(_CONFIG)
def offload_modules_exist(file: MegatronView) -> Violations:
    """Only modules that can be offloaded are, and attention's projection with its core."""
    option = "--offload-modules"
    if not file.on("--fine-grained-activation-offloading"):
        return
    modules = file.words(option)
    for module in dict.fromkeys(modules):
        if module not in OFFLOADED_MODULES:
            yield option, f"unknown {module}; allowed are {', '.join(OFFLOADED_MODULES)}"
    if "attn_proj" in modules and "core_attn" not in modules:
        yield option, "attn_proj needs core_attn, whose output it saves"


@rule(_ARGUMENTS)
def optimizer_offload_setup(file: MegatronView) -> Violations:
    """The offloaded optimizer is the precision-aware one."""
    if file.on(OFFLOAD) and not file.on(AWARE):
        yield OFFLOAD, f"needs {AWARE}"
    recipe = file.word("--fp8-recipe", "delayed")
    if file.on(OFFLOAD) and file.on("--fp8-param-gather") and recipe != "delayed":
        yield OFFLOAD, f"with --fp8-param-gather needs --fp8-recipe delayed; given {recipe}"


@rule(_OPTIMIZER)
def precision_aware_needs_sharded_adam(file: MegatronView) -> Violations:
    """The precision-aware optimizer is Adam under the distributed optimizer."""
    name = file.word("--optimizer", "adam")
    if file.on(AWARE) and name != "adam":
        yield AWARE, f"needs --optimizer adam; given {name}"
    if file.on(AWARE) and not (file.on(SHARDED) or file.on(FSDP)):
        yield AWARE, f"needs {SHARDED}"


@rule(_OPTIMIZER)
def small_states_need_precision_aware(file: MegatronView) -> Violations:
    """Other states than fp32 belong to the precision-aware optimizer."""
    options = ("--main-grads-dtype", "--main-params-dtype", "--exp-avg-dtype", "--exp-avg-sq-dtype")
    for option in options:
        if file.word(option, "fp32") != "fp32" and not file.on(AWARE):
            yield option, f"needs {AWARE}; given {file.word(option)}"


@rule(f"{_PARALLEL}when the model is wrapped", enforced=False)
def instances_need_sharding(file: MegatronView) -> Violations:
    """There are replicas of a sharding group where there is one, and it shares out elements."""
    count = file.size(INSTANCES)
    if count > 1 and not (file.on(SHARDED) or file.on(FSDP)):
        yield INSTANCES, f"needs {SHARDED}; given {count}"
    name = file.word("--optimizer", "adam")
    if count > 1 and name in LAYER_WISE:
        yield INSTANCES, f"must be 1 with --optimizer {name}; given {count}"


@rule(_ARGUMENTS)
def gather_overlap_needs_reduction_overlap(file: MegatronView) -> Violations:
    """Gathered weights are overlapped where sharded gradients are."""
    if not file.on(GATHER):
        return
    if not (file.on(SHARDED) or file.on(FSDP)):
        yield GATHER, f"needs {SHARDED} or {FSDP}"
    if not file.on("--overlap-grad-reduce"):
        yield GATHER, "needs --overlap-grad-reduce"


@rule(
    _ARGUMENTS,
    key="--overlap-param-gather-with-optimizer-step",
    says=f"needs {SHARDED}, {GATHER} and several chunks per stage; given {{file.vpp}}",
)
def step_overlap_needs_chunks(file: MegatronView) -> bool:
    """Gathering during the optimizer's step goes chunk by chunk."""
    return file.on("--overlap-param-gather-with-optimizer-step") and (
        file.vpp == 1 or not file.on(GATHER) or not file.on(SHARDED)
    )


@rule(_ARGUMENTS)
def megatron_fsdp_setup(file: MegatronView) -> Violations:
    """Megatron-FSDP has its own checkpoints and wants several device queues."""
    if not file.on(FSDP):
        return
    checkpoints = file.word("--ckpt-format", "torch_dist")
    if checkpoints != "fsdp_dtensor":
        yield FSDP, f"needs --ckpt-format fsdp_dtensor; given {checkpoints}"
    if file.variable(CONNECTIONS) == "1":
        yield FSDP, f"needs {CONNECTIONS} unset or above 1; given 1"


@rule(
    f"{_ADAPTER}, when the model is wrapped",
    key=FSDP,
    says="needs --pipeline-model-parallel-size 1; given {file.pp}",
)
def megatron_fsdp_takes_all_processes(file: MegatronView) -> bool:
    """Megatron-FSDP lays its mesh over all processes: pipeline stages have no place in it."""
    return file.on(FSDP) and file.pp > 1


@rule(_ARGUMENTS)
def megatron_fsdp_optimizer(file: MegatronView) -> Violations:
    """Megatron-FSDP updates its shards with Adam or SGD."""
    name = file.word("--optimizer", "adam")
    if file.on(FSDP) and name not in ("adam", "sgd"):
        yield FSDP, f"needs --optimizer adam or sgd; given {name}"


@rule(
    f"{_ADAPTER}, when the model is wrapped",
    key="--fsdp-double-buffer",
    says=f"cannot stand beside {EXCHANGE}",
    enforced=False,
)
def double_buffer_excludes_batches(file: MegatronView) -> bool:
    """Expert exchange beside another micro-batch needs more than two buffers of a layer."""
    return file.on(FSDP) and file.on("--fsdp-double-buffer") and file.on(EXCHANGE)


def _needs(option: str, missing: Mapping[str, bool]) -> Violations:
    """What an option needs, of all that may be missing."""
    if any(missing.values()):
        yield option, f"needs {', '.join(name for name, is_so in missing.items() if is_so)}"


@rule(_ARGUMENTS)
def torch_fsdp_setup(file: MegatronView) -> Violations:
    """PyTorch's FSDP takes the place of stages, expert parallelism and sharded states."""
    if not file.on(FSDP2):
        return
    refused = {
        "--pipeline-model-parallel-size 1": file.pp > 1,
        "--expert-model-parallel-size 1": file.ep > 1,
        f"no {SHARDED}": file.on(SHARDED),
        f"{CONNECTIONS} unset or above 1": file.variable(CONNECTIONS) == "1",
        "--no-gradient-accumulation-fusion": not file.on("--no-gradient-accumulation-fusion"),
        "--untie-embeddings-and-output-weights": not file.on(
            "--untie-embeddings-and-output-weights"
        ),
    }
    yield from _needs(FSDP2, refused)


def _needs_one_queue(file: MegatronView) -> bool:
    is_free = file.on(FSDP) or file.on(FSDP2) or file.on(EXCHANGE) or file.keeps_order
    return file.is_script and not is_free and file.tp * file.cp > 1


@rule(_ARGUMENTS)
def connections_keep_order(file: MegatronView) -> Violations:
    """Before Blackwell one device queue keeps communication ahead of the product it hides under."""
    given = file.variable(CONNECTIONS)
    if _needs_one_queue(file) and given not in (None, "1"):
        message = f"must be 1 with tensor or context parallelism before Blackwell; given {given}"
        yield CONNECTIONS, message


@rule(
    _ARGUMENTS,
    key=CONNECTIONS,
    says=(
        "must be 1 with tensor or context parallelism before Blackwell; not set in this "
        "file: Megatron stops where the environment does not set it either"
    ),
    severity="warning",
)
def connections_are_set(file: MegatronView) -> bool:
    """A script sets the device queues itself, or relies on whoever starts it."""
    return _needs_one_queue(file) and file.variable(CONNECTIONS) is None


@rule(_CONFIG)
def expert_overlap_setup(file: MegatronView) -> Violations:
    """Overlapped expert exchange needs experts apart, chunks, 16 bits, and layers not repeated."""
    if not file.on(EXCHANGE):
        return
    refused = {
        "--expert-model-parallel-size above 1": file.ep == 1,
        "--moe-token-dispatcher-type alltoall or flex": dispatcher(file) == "allgather",
        "several chunks per stage": file.pp > 1 and file.vpp == 1,
        "no full recomputation": _granularity(file) == "full",
        f"no moe among {MODULES}": "moe" in file.words(MODULES),
        "--bf16 or --fp16": not (file.on("--bf16") or file.on("--fp16")),
        f"at most 1 of {MTP}": (file.number(MTP) or 0) > 1,
        "no --moe-shared-expert-overlap": file.on("--moe-shared-expert-overlap"),
    }
    yield from _needs(EXCHANGE, refused)


@rule(_CONFIG, key="--delay-wgrad-compute", says=f"needs {EXCHANGE}")
def delayed_gradients_need_exchange(file: MegatronView) -> bool:
    """Weight gradients are put off to give expert exchange something to run beside."""
    return file.on("--delay-wgrad-compute") and not file.on(EXCHANGE)


@rule(f"{_ARGUMENTS}, {_CONFIG}")
def one_precision(file: MegatronView) -> Violations:
    """Weights and products have one precision each."""
    for option, other in (("--fp16", "--bf16"), ("--fp8-format", "--fp4-format")):
        if file.has(option) and file.has(other):
            yield option, f"cannot stand beside {other}"
