"""A plan in words: what to run in one sentence, and what that takes."""

from planner.cost.context import Context
from planner.cost.estimate import Estimate
from planner.plans.plan import Plan
from planner.report.evidence import range_text
from planner.report.mfu import peak_words, runs_at_peak
from planner.report.tables import days
from planner.spec.strategy import COLUMNS, GPU_DEGREES, MOVED, Strategy
from planner.units import GIB, TERA, format_count, format_seconds


def degrees_words(strategy: Strategy) -> str:
    """How GPUs are divided: ``data 8 × tensor 4 × pipeline 4``; empty on one."""
    degrees = [
        f"{COLUMNS[axis].word} {getattr(strategy, axis)}"
        for axis in GPU_DEGREES
        if getattr(strategy, axis) > 1
    ]
    return " × ".join(degrees)


def _expert_words(strategy: Strategy) -> list[str]:
    """Where experts lie, if not as other layers."""
    words = [f"experts over {strategy.ep}"] if strategy.ep > 1 else []
    if strategy.etp != strategy.tp:
        words.append(f"each expert split {strategy.etp} ways" if strategy.etp > 1 else "each whole")
    return words


def _state_words(strategy: Strategy) -> list[str]:
    """How states are sharded; nothing to say where nobody could share them."""
    if strategy.dp * strategy.cp == 1:
        return []
    groups = f" in {strategy.dp_replicate} replicas" if strategy.dp_replicate > 1 else ""
    return [f"ZeRO-{strategy.zero_stage}{groups}" if strategy.zero_stage else "states not sharded"]


def offload_words(strategy: Strategy) -> str:
    """What states are offloaded, and where to."""
    if strategy.offload == "none":
        return "nothing offloaded"
    what, _, where = strategy.offload.partition(":")
    share = f"{strategy.offload_percent}% of the " if strategy.offload_percent < 100 else ""
    return f"{share}{what.replace('+', ' and ')} on the {where}"


def recompute_words(context: Context, strategy: Strategy) -> str:
    """What is recomputed of which layers."""
    if strategy.recompute == "none":
        return "nothing recomputed"
    if strategy.recompute == "full":
        return "all layers recomputed"
    modules: tuple[str, ...] = ()
    if any(strategy.selective_layers_per_stage):
        modules = strategy.recompute_modules or context.traits.recompute.selected
    named = f" ({', '.join(modules)})" if modules else ""
    if strategy.recompute == "selective":
        return f"selective recomputation{named}"
    return f"recomputed {strategy.recompute}{named}"


def saving_words(plan: Plan) -> list[str]:
    """What is recomputed and offloaded."""
    strategy = plan.strategy
    moved = [
        policy.words.format(strategy.layers_under[name])
        for name, policy in MOVED.items()
        if strategy.layers_under[name]
    ]
    offloads = [offload_words(strategy)] if strategy.offload != "none" else []
    recomputes = [recompute_words(plan.context, strategy)] if strategy.recompute != "none" else []
    done = [*recomputes, *offloads, *moved]
    if not recomputes and not (offloads or moved):
        return ["nothing recomputed or offloaded"]
    return done if recomputes else ["nothing recomputed", *done]


def layout_words(plan: Plan) -> str:
    """The layout in words, from degrees to what is recomputed and offloaded."""
    strategy = plan.strategy
    chunks = [f"{strategy.vpp} chunks a stage"] if strategy.vpp > 1 else []
    schedule = [f"schedule {strategy.schedule}"] if strategy.schedule != "1f1b" else []
    return ", ".join(
        [
            *([words] if (words := degrees_words(strategy)) else []),
            *chunks,
            *_expert_words(strategy),
            *schedule,
            f"micro-batch {strategy.micro_batch}",
            *_state_words(strategy),
            *saving_words(plan),
        ]
    )


def run_line(plan: Plan, *, of_gpus: int, names_framework: bool) -> str:
    """What to run: on which GPUs, cut up how."""
    gpus, kind = plan.strategy.num_gpus, plan.context.cluster.accelerator.name
    place = f"{gpus:,} {kind}" if gpus == of_gpus else f"{gpus:,} of {of_gpus:,} {kind}"
    software = f" with {plan.framework}" if names_framework else ""
    joined = " as " if plan.strategy.num_gpus > 1 else ": "
    return f"Run it on {place}{software}{joined}{layout_words(plan)}."


def time_line(plan: Plan) -> str:
    """What an iteration takes, with the range of such runs."""
    made = plan.estimate
    return (
        f"{format_seconds(made.iter_time_s)} an iteration (80 % of runs: {range_text(made)}), "
        f"{format_count(round(made.tokens_per_s))} tokens/s"
    )


def mfu_text(estimate: Estimate) -> str:
    """MFU with the range of such runs."""
    low, high = 100.0 * estimate.mfu_lower, 100.0 * estimate.mfu_upper
    return f"{estimate.mfu:.1%} (80 % of runs: {low:.1f} - {high:.1f} %)"


def utilization_line(plan: Plan) -> str:
    """How well the accelerators are used, by both figures that reports of runs state."""
    rate = plan.estimate.model_flops_per_s_per_gpu / TERA
    return f"MFU {mfu_text(plan.estimate)}{over_words(plan)}, {rate:,.3g} model TFLOP/s a GPU"


def over_words(plan: Plan) -> str:
    """Over which peak the MFU is, where the products run at another one."""
    return "" if runs_at_peak(plan) else f" of the {peak_words(plan)} peak"


def memory_line(plan: Plan) -> str:
    """What of a GPU's memory is taken, and what is free."""
    memory = plan.estimate.memory
    return (
        f"{memory.peak_bytes / GIB:,.1f} of {memory.hbm_bytes / GIB:,.1f} GiB of the fullest GPU, "
        f"{plan.free_bytes / GIB:,.1f} free"
    )


def host_line(plan: Plan) -> str:
    """What of a node's host memory or disks is taken, and whether anybody stated their size.

    Empty where nothing is offloaded.
    """
    node, memory = plan.context.cluster.node, plan.estimate.memory
    on_disks = ":nvme" in plan.strategy.offload
    there = node.nvme_bytes if on_disks else node.host_memory_bytes
    if not (memory.host_bytes and there):
        return ""
    taken = memory.ranks_per_node * memory.host_bytes
    where = "disks" if on_disks else "host memory"
    is_assumed = node.host_memory_note and not on_disks
    assumed = ", which is assumed (see --host-memory)" if is_assumed else ""
    return f"{taken / GIB:,.0f} of {there / GIB:,.0f} GiB of a node's {where}{assumed}"


def memory_lines(plan: Plan) -> list[str]:
    """What of the memories is taken that the plan fills."""
    return [line for line in (memory_line(plan), host_line(plan)) if line]


def figure_lines(plan: Plan) -> list[str]:
    """What a plan takes: time, use of the accelerators, memory, and the job where it is given."""
    lines = [time_line(plan), utilization_line(plan), *memory_lines(plan), job_line(plan)]
    return [line for line in lines if line]


def job_line(plan: Plan) -> str:
    """What the whole job takes; empty where its tokens are not given."""
    total_s, job = plan.total_s(), plan.context.job
    if total_s is None or job.total_tokens is None:
        return ""
    cost = plan.cost_usd()
    price = "" if cost is None else f", {format_count(round(cost))} USD"
    return (
        f"{format_count(job.total_tokens)} tokens: {days(total_s)} days, "
        f"{format_count(round(plan.gpu_hours()))} GPU-hours{price}"
    )
