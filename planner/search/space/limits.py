"""What rules allow here, in words with the numbers of model, job, cluster and software."""

from collections.abc import Mapping
from types import MappingProxyType

from planner.cost.context import Context
from planner.spec.traits import ANY_FAMILY


def placements(context: Context) -> str:
    """Orders of the axes."""
    return f"{context.traits.name} offers {', '.join(context.traits.support.placements)}"


def zero_stages(context: Context) -> str:
    """Stages alone and under pipelining."""
    support = context.traits.support
    piped = ", ".join(map(str, support.zero_stages_with_pp)) or "none"
    alone = ", ".join(map(str, support.zero_stages))
    return f"{context.traits.name} offers stages {alone}, with pipelining {piped}"


def schedules(context: Context) -> str:
    """Pipeline schedules of the profile."""
    profile = f"profile {context.traits.profile} of {context.traits.name}"
    return f"{profile} offers {', '.join(context.traits.support.schedules)}"


def optimizer(context: Context) -> str:
    """ZeRO stages of the optimizer."""
    own = context.traits.optimizer
    stages = ", ".join(map(str, own.zero_stages))
    return f"{own.name} under {context.traits.name} runs under stages {stages}"


def offloads(context: Context) -> str:
    """What can leave the device, and for where."""
    return f"{context.traits.name} offers {', '.join(context.traits.support.offload)}"


def heads(context: Context) -> str:
    """The model's."""
    model = context.model
    return f"{model.name} has {model.num_heads} heads, {model.num_kv_heads} of keys and values"


def widths(context: Context) -> str:
    """Of the layers that tensor parallelism splits."""
    moe = context.model.moe
    experts = f", shared experts {moe.shared_ffn_size}" if moe and moe.shared_ffn_size else ""
    return f"the MLP is {context.model.ffn_size} wide{experts}"


def splits(context: Context) -> str:
    """What tensor parallelism can split."""
    model, support = context.model, context.traits.support
    own = f"{model.name} has {model.num_kv_heads} key and value heads"
    if ANY_FAMILY in support.tp_families:
        return own
    return f"{context.traits.name} splits {', '.join(support.tp_families)}; {own}"


def attention(context: Context) -> str:
    """What context parallelism runs."""
    return f"{context.traits.name} runs {context.traits.support.cp_attention} attention so"


def experts(context: Context) -> str:
    """The model's."""
    moe = context.model.moe
    return f"{context.model.name} has {moe.num_experts if moe else 0} experts"


def expert_width(context: Context) -> str:
    """Of one expert."""
    moe = context.model.moe
    return f"an expert of {context.model.name} is {moe.expert_ffn_size if moe else 0} wide"


_MESHES: Mapping[str, str] = MappingProxyType(
    {
        "inside_dp": "has etp = tp, and ep a divisor of dp",
        "folded": "has any etp x ep that divides tp x cp x dp",
        "folded_whole": "has etp 1 with ep above 1, else etp = tp",
    }
)


def expert_mesh(context: Context) -> str:
    """How experts may lie on the ranks."""
    if context.model.moe is None:
        return f"{context.model.name} has no experts"
    return f"{context.traits.name} {_MESHES[context.traits.support.expert_mesh]}"


def batch(context: Context) -> str:
    """The job's."""
    return f"the global batch is {context.job.global_batch}"


def layers(context: Context) -> str:
    """The model's."""
    return f"{context.model.name} has {context.model.num_blocks} layers"


def room(context: Context) -> str:
    """What is not known of the node."""
    node = context.cluster.node
    figures = {
        "host_memory_gib": node.host_memory_bytes,
        "nvme_tb": node.nvme_bytes,
        "nvme_read_gb_per_s": node.nvme_read_bytes_per_s,
        "nvme_write_gb_per_s": node.nvme_write_bytes_per_s,
    }
    unknown = [name for name, value in figures.items() if not value]
    if not unknown:
        return f"all are known of {node.name}"
    return f"{node.name} has no {', '.join(unknown)}, which overrides of a cluster file can give"


def gpus(context: Context) -> str:
    """The cluster's."""
    return f"the cluster has {context.cluster.num_accelerators}"
