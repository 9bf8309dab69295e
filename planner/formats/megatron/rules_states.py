"""Rules about recomputation, optimizer, precision, overlap and the environment."""

from collections.abc import Iterator, Mapping

from planner.formats.megatron.decisions_layout import HOST_LAYERS
from planner.formats.megatron.decisions_states import AWARE, LAYER_WISE
from planner.formats.megatron.facts import Breach, Facts, rule
from planner.formats.megatron.rules_model import dispatcher
from planner.formats.megatron.runtime import CONNECTIONS
from planner.formats.megatron.settings import MTP

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
_OPTIMIZER = "megatron/core/optimizer/optimizer_config.py"


def _granularity(facts: Facts) -> str:
    if facts.on("--recompute-activations"):
        return "selective"
    return facts.word(GRANULARITY)


def full_recompute_is_complete(facts: Facts) -> Iterator[Breach]:
    """Full recomputation is told how and how many layers."""
    missing = [option for option in (METHOD, UNIT) if option not in facts.settings]
    if _granularity(facts) == "full" and missing:
        yield GRANULARITY, f"full needs {' and '.join(missing)}"


def recompute_has_a_granularity(facts: Facts) -> Iterator[Breach]:
    """Without one nothing is recomputed, whatever method and layers say."""
    found = [option for option in (METHOD, UNIT, MODULES) if option in facts.settings]
    is_open = GRANULARITY in facts.settings or facts.on("--recompute-activations")
    if found and not is_open:
        yield found[0], f"nothing is recomputed without {GRANULARITY} full or selective"


def selective_recompute_takes_modules(facts: Facts) -> Iterator[Breach]:
    """Selective recomputation holds for all layers."""
    found = [option for option in (METHOD, UNIT) if facts.given(option)]
    if _granularity(facts) == "selective" and found:
        yield found[0], "belongs to full recomputation; selective takes --recompute-modules"


def recompute_modules_exist(facts: Facts) -> Iterator[Breach]:
    """Only what the model has and the recipe allows can be recomputed."""
    if _granularity(facts) != "selective":
        return
    delayed = facts.given("--fp8-format") and facts.word("--fp8-recipe", "delayed") == "delayed"
    refused = {
        "moe_act": "needs --moe-grouped-gemm" * (not facts.on("--moe-grouped-gemm")),
        "mla_up_proj": "needs --multi-latent-attention"
        * (not facts.on("--multi-latent-attention")),
        "shared_experts": "cannot stand beside --moe-shared-expert-overlap"
        * facts.on("--moe-shared-expert-overlap")
        * facts.given("--moe-shared-expert-intermediate-size"),
        "layernorm": "cannot stand beside fp8 with delayed scaling" * delayed,
    }
    refused["moe_act"] = refused["moe_act"] or refused["layernorm"]
    for module in facts.words(MODULES):
        if module not in KNOWN_MODULES:
            yield MODULES, f"unknown {module}; allowed are {', '.join(KNOWN_MODULES)}"
        elif refused.get(module):
            yield MODULES, f"{module} {refused[module]}"


def distributed_activations_need_full(facts: Facts) -> Iterator[Breach]:
    """Saved inputs are shared out over tp ranks under full recomputation only."""
    option = "--distribute-saved-activations"
    if not facts.on(option):
        return
    if facts.tp == 1 or facts.on(SP) or _granularity(facts) != "full":
        yield option, f"needs tensor parallelism without {SP} and {GRANULARITY} full"


def host_layers_stand_alone(facts: Facts) -> Iterator[Breach]:
    """Activations go to the host without stages and without recomputation."""
    count = facts.number(HOST_LAYERS)
    if not count:
        return
    if facts.pp > 1:
        yield HOST_LAYERS, f"needs --pipeline-model-parallel-size 1; given {facts.pp}"
    if _granularity(facts):
        yield HOST_LAYERS, "cannot stand beside recomputation"
    if facts.num_layers and not 0 <= count < facts.num_layers:
        yield HOST_LAYERS, f"must be below the {facts.num_layers} layers; given {count}"


def fine_grained_offload_setup(facts: Facts) -> Iterator[Breach]:
    """Offloading of modules needs Transformer Engine's first way of it, and modules."""
    option = "--fine-grained-activation-offloading"
    if not facts.on(option):
        return
    if facts.is_script and facts.variable("NVTE_CPU_OFFLOAD_V1") != "1":
        yield option, "needs NVTE_CPU_OFFLOAD_V1=1 in the environment"
    if not facts.words("--offload-modules"):
        yield option, "needs --offload-modules"


def offload_modules_exist(facts: Facts) -> Iterator[Breach]:
    """Only modules that can be offloaded are, and attention's projection with its core."""
    option = "--offload-modules"
    if not facts.on("--fine-grained-activation-offloading"):
        return
    modules = facts.words(option)
    for module in dict.fromkeys(modules):
        if module not in OFFLOADED_MODULES:
            yield option, f"unknown {module}; allowed are {', '.join(OFFLOADED_MODULES)}"
    if "attn_proj" in modules and "core_attn" not in modules:
        yield option, "attn_proj needs core_attn, whose output it saves"


def optimizer_offload_setup(facts: Facts) -> Iterator[Breach]:
    """The offloaded optimizer is the precision-aware one."""
    if facts.on(OFFLOAD) and not facts.on(AWARE):
        yield OFFLOAD, f"needs {AWARE}"
    recipe = facts.word("--fp8-recipe", "delayed")
    if facts.on(OFFLOAD) and facts.on("--fp8-param-gather") and recipe != "delayed":
        yield OFFLOAD, f"with --fp8-param-gather needs --fp8-recipe delayed; given {recipe}"


def precision_aware_needs_sharded_adam(facts: Facts) -> Iterator[Breach]:
    """The precision-aware optimizer is Adam under the distributed optimizer."""
    name = facts.word("--optimizer", "adam")
    if facts.on(AWARE) and name != "adam":
        yield AWARE, f"needs --optimizer adam; given {name}"
    if facts.on(AWARE) and not (facts.on(SHARDED) or facts.on(FSDP)):
        yield AWARE, f"needs {SHARDED}"


def small_states_need_precision_aware(facts: Facts) -> Iterator[Breach]:
    """Other states than fp32 belong to the precision-aware optimizer."""
    options = ("--main-grads-dtype", "--main-params-dtype", "--exp-avg-dtype", "--exp-avg-sq-dtype")
    for option in options:
        if facts.word(option, "fp32") != "fp32" and not facts.on(AWARE):
            yield option, f"needs {AWARE}; given {facts.word(option)}"


def instances_need_sharding(facts: Facts) -> Iterator[Breach]:
    """There are replicas of a sharding group where there is one, and it shares out elements."""
    count = facts.whole(INSTANCES)
    if count > 1 and not (facts.on(SHARDED) or facts.on(FSDP)):
        yield INSTANCES, f"needs {SHARDED}; given {count}"
    name = facts.word("--optimizer", "adam")
    if count > 1 and name in LAYER_WISE:
        yield INSTANCES, f"must be 1 with --optimizer {name}; given {count}"


def gather_overlap_needs_reduction_overlap(facts: Facts) -> Iterator[Breach]:
    """Gathered weights are overlapped where sharded gradients are."""
    if not facts.on(GATHER):
        return
    if not (facts.on(SHARDED) or facts.on(FSDP)):
        yield GATHER, f"needs {SHARDED} or {FSDP}"
    if not facts.on("--overlap-grad-reduce"):
        yield GATHER, "needs --overlap-grad-reduce"


def step_overlap_needs_chunks(facts: Facts) -> Iterator[Breach]:
    """Gathering during the optimizer's step goes chunk by chunk."""
    option = "--overlap-param-gather-with-optimizer-step"
    if facts.on(option) and (facts.vpp == 1 or not facts.on(GATHER) or not facts.on(SHARDED)):
        yield option, f"needs {SHARDED}, {GATHER} and several chunks per stage; given {facts.vpp}"


def megatron_fsdp_setup(facts: Facts) -> Iterator[Breach]:
    """Megatron-FSDP has its own checkpoints and wants several device queues."""
    if not facts.on(FSDP):
        return
    checkpoints = facts.word("--ckpt-format", "torch_dist")
    if checkpoints != "fsdp_dtensor":
        yield FSDP, f"needs --ckpt-format fsdp_dtensor; given {checkpoints}"
    if facts.variable(CONNECTIONS) == "1":
        yield FSDP, f"needs {CONNECTIONS} unset or above 1; given 1"


def megatron_fsdp_takes_all_processes(facts: Facts) -> Iterator[Breach]:
    """Megatron-FSDP lays its mesh over all processes: pipeline stages have no place in it."""
    if facts.on(FSDP) and facts.pp > 1:
        yield FSDP, f"needs --pipeline-model-parallel-size 1; given {facts.pp}"


def megatron_fsdp_optimizer(facts: Facts) -> Iterator[Breach]:
    """Megatron-FSDP updates its shards with Adam or SGD."""
    name = facts.word("--optimizer", "adam")
    if facts.on(FSDP) and name not in ("adam", "sgd"):
        yield FSDP, f"needs --optimizer adam or sgd; given {name}"


def double_buffer_excludes_batches(facts: Facts) -> Iterator[Breach]:
    """Expert exchange beside another micro-batch needs more than two buffers of a layer."""
    option = "--fsdp-double-buffer"
    if facts.on(FSDP) and facts.on(option) and facts.on(EXCHANGE):
        yield option, f"cannot stand beside {EXCHANGE}"


def _needs(option: str, missing: Mapping[str, bool]) -> Iterator[Breach]:
    """What an option needs, of all that may be missing."""
    if any(missing.values()):
        yield option, f"needs {', '.join(name for name, is_so in missing.items() if is_so)}"


def torch_fsdp_setup(facts: Facts) -> Iterator[Breach]:
    """PyTorch's FSDP takes the place of stages, expert parallelism and sharded states."""
    if not facts.on(FSDP2):
        return
    refused = {
        "--pipeline-model-parallel-size 1": facts.pp > 1,
        "--expert-model-parallel-size 1": facts.ep > 1,
        f"no {SHARDED}": facts.on(SHARDED),
        f"{CONNECTIONS} unset or above 1": facts.variable(CONNECTIONS) == "1",
        "--no-gradient-accumulation-fusion": not facts.on("--no-gradient-accumulation-fusion"),
        "--untie-embeddings-and-output-weights": not facts.on(
            "--untie-embeddings-and-output-weights"
        ),
    }
    yield from _needs(FSDP2, refused)


def _needs_one_queue(facts: Facts) -> bool:
    is_free = facts.on(FSDP) or facts.on(FSDP2) or facts.on(EXCHANGE) or facts.keeps_order
    return facts.is_script and not is_free and facts.tp * facts.cp > 1


def connections_keep_order(facts: Facts) -> Iterator[Breach]:
    """Before Blackwell one device queue keeps communication ahead of the product it hides under."""
    given = facts.variable(CONNECTIONS)
    if _needs_one_queue(facts) and given not in (None, "1"):
        message = f"must be 1 with tensor or context parallelism before Blackwell; given {given}"
        yield CONNECTIONS, message


def connections_are_set(facts: Facts) -> Iterator[Breach]:
    """A script sets the device queues itself, or relies on whoever starts it."""
    if _needs_one_queue(facts) and facts.variable(CONNECTIONS) is None:
        yield (
            CONNECTIONS,
            (
                "must be 1 with tensor or context parallelism before Blackwell; not set in this "
                "file: Megatron stops where the environment does not set it either"
            ),
        )


def expert_overlap_setup(facts: Facts) -> Iterator[Breach]:
    """Overlapped expert exchange needs experts apart, chunks, 16 bits, and layers not repeated."""
    if not facts.on(EXCHANGE):
        return
    refused = {
        "--expert-model-parallel-size above 1": facts.ep == 1,
        "--moe-token-dispatcher-type alltoall or flex": dispatcher(facts) == "allgather",
        "several chunks per stage": facts.pp > 1 and facts.vpp == 1,
        "no full recomputation": _granularity(facts) == "full",
        f"no moe among {MODULES}": "moe" in facts.words(MODULES),
        "--bf16 or --fp16": not (facts.on("--bf16") or facts.on("--fp16")),
        f"at most 1 of {MTP}": (facts.number(MTP) or 0) > 1,
        "no --moe-shared-expert-overlap": facts.on("--moe-shared-expert-overlap"),
    }
    yield from _needs(EXCHANGE, refused)


def delayed_gradients_need_exchange(facts: Facts) -> Iterator[Breach]:
    """Weight gradients are put off to give expert exchange something to run beside."""
    option = "--delay-wgrad-compute"
    if facts.on(option) and not facts.on(EXCHANGE):
        yield option, f"needs {EXCHANGE}"


def one_precision(facts: Facts) -> Iterator[Breach]:
    """Weights and products have one precision each."""
    for option, other in (("--fp16", "--bf16"), ("--fp8-format", "--fp4-format")):
        if facts.given(option) and facts.given(other):
            yield option, f"cannot stand beside {other}"


_PARALLEL = "megatron/core/distributed/distributed_data_parallel.py and layer_wise_optimizer.py, "
RULES = (
    rule(full_recompute_is_complete, _CONFIG),
    rule(
        recompute_has_a_granularity,
        f"{_CONFIG}: the layers ask for recompute_granularity alone",
        enforced=False,
    ),
    rule(selective_recompute_takes_modules, f"{_ARGUMENTS}, {_CONFIG}"),
    rule(recompute_modules_exist, _CONFIG),
    rule(distributed_activations_need_full, f"{_ARGUMENTS}, {_CONFIG}"),
    rule(host_layers_stand_alone, _CONFIG),
    rule(fine_grained_offload_setup, f"{_ARGUMENTS}, {_CONFIG}"),
    rule(offload_modules_exist, _CONFIG),
    rule(optimizer_offload_setup, _ARGUMENTS),
    rule(precision_aware_needs_sharded_adam, _OPTIMIZER),
    rule(small_states_need_precision_aware, _OPTIMIZER),
    rule(instances_need_sharding, f"{_PARALLEL}when the model is wrapped", enforced=False),
    rule(gather_overlap_needs_reduction_overlap, _ARGUMENTS),
    rule(step_overlap_needs_chunks, _ARGUMENTS),
    rule(megatron_fsdp_setup, _ARGUMENTS),
    rule(megatron_fsdp_takes_all_processes, f"{_ADAPTER}, when the model is wrapped"),
    rule(megatron_fsdp_optimizer, _ARGUMENTS),
    rule(double_buffer_excludes_batches, f"{_ADAPTER}, when the model is wrapped", enforced=False),
    rule(torch_fsdp_setup, _ARGUMENTS),
    rule(connections_keep_order, _ARGUMENTS),
    rule(connections_are_set, _ARGUMENTS, severity="warning"),
    rule(expert_overlap_setup, _CONFIG),
    rule(delayed_gradients_need_exchange, _CONFIG),
    rule(one_precision, f"{_ARGUMENTS}, {_CONFIG}"),
)
