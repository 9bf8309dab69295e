"""The job around a plan's iteration: checkpoints, failures, money, energy, input.

Formulas first, with their sources; :func:`time_factor` takes columns too.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.answers.base import Plan
from planner.errors import InputError
from planner.layers.adapter_targets import adapter_params
from planner.layers.parameters import (
    Parts,
    count_active_parameters,
    count_parameters,
    embedding_params,
    head_params,
)
from planner.layers.weights import mean_states
from planner.query.objectives import cost_usd, energy_kwh, gpu_hours, job_time_s
from planner.spec.cluster import NodeSpec
from planner.spec.traits import traits_at_precision
from planner.units import DAY_S, GB, Array, format_seconds

STORAGE_BYTES_PER_S_PER_GPU = 2000.0 * GB / 16_384
"""Of the file system: Tectonic's 2 TB/s over the 16,384 GPUs of Llama 3 (arXiv 2407.21783, section
3.3.1); NVIDIA asks 0.6 to 1.9 GB/s a node of eight (DGX SuperPOD H100, storage)."""
FAILURES, FAILING_GPUS = 419.0, 16_384.0
"""Unexpected interruptions of Llama 3 405B in 54 days on 16,384 H100; 47 more were planned (arXiv
2407.21783, section 3.3.4)."""
RESTART_S = 600.0
"""From a failure to loading: finding it and testing nodes took less than ten minutes on ten
thousand GPUs (MegaScale, arXiv 2402.15627)."""


def checkpoint_bytes(
    num_params: float, weight_bytes: float, master_bytes: float, state_bytes: float
) -> float:
    """Bytes: ``parameters · (weights + master weights + optimizer states)``, each per parameter.

    ``weight_bytes`` are weights saved beside the master copy, 0 where that serves. Gradients are
    not saved; the data loader's and random generators' states are small, and left out.

    BLOOM, 176.2 billion parameters in bf16 with Adam and fp32 weights: 2.24 TiB, published as 2.3
    TB (BigScience, "The technology behind BLOOM training"; its units are binary).
    """
    return num_params * (weight_bytes + master_bytes + state_bytes)


def write_s(
    num_bytes: float, storage_bytes_per_s: float, num_nodes: float, node_bytes_per_s: float
) -> float:
    """Seconds: ``bytes / min(storage_bytes_per_s, num_nodes · node_bytes_per_s)``.

    Every rank writes its part of the states, so all nodes write at once; a node is limited by its
    ports or by the links of its GPUs to the host, whichever is slower. Excludes metadata, names
    of many files, and other jobs on the file system. Reading back takes as long.
    """
    return num_bytes / min(storage_bytes_per_s, num_nodes * node_bytes_per_s)


def young_interval_s(stop_s: float, mtbf_s: float) -> float:
    """Seconds of work between checkpoints: ``sqrt(2 · δ · M)``.

    δ is the stop of one, M the mean time between failures of the job. First order: right where δ is
    far below M. Source: Young, Communications of the ACM 17 (9), 1974.

    >>> f"{young_interval_s(5 * 60, 24 * 3600) / 60:.0f} min"
    '120 min'
    """
    return math.sqrt(2.0 * stop_s * mtbf_s)


def daly_interval_s(stop_s: float, mtbf_s: float) -> float:
    """Seconds: ``sqrt(2δM) · [1 + (δ/2M)^(1/2) / 3 + (δ/2M) / 9] - δ``; M where δ is 2M or more.

    δ is the stop of one checkpoint, M the mean time between failures of the job. Source: Daly,
    Future Generation Computer Systems 22, 2006, equation 37; within 0.2 % of the exact optimum of
    time_factor below δ = M/2. His figures 3 to 5, for δ of 5 min: 117, 57 and 9.1 min.

    >>> [f"{daly_interval_s(300.0, hours * 3600) / 60:.1f} min" for hours in (24, 6, 0.25)]
    ['116.7 min', '56.7 min', '9.1 min']
    """
    share = stop_s / (2.0 * mtbf_s)
    if share >= 1.0:
        return mtbf_s
    series = 1.0 + math.sqrt(share) / 3.0 + share / 9.0
    return young_interval_s(stop_s, mtbf_s) * series - stop_s


def node_mtbf_s(gpus_per_node: float) -> float:
    """Mean seconds between failures of a node: ``54 d · 16,384 / 419 / gpus_per_node``.

    Failures in proportion to GPUs: three quarters of those of Llama 3 were of GPUs, their memory,
    links and network (arXiv 2407.21783, table 5). New or old machines fail several times as often.

    >>> f"{node_mtbf_s(8) / 86400:.0f} days"
    '264 days'
    """
    return 54.0 * DAY_S * FAILING_GPUS / FAILURES / gpus_per_node


def time_factor(interval_s: Array | float, stop_s: float, restart_s: float, mtbf_s: float) -> Array:
    """Elapsed over useful time: ``M · e^(R/M) · (e^((τ+δ)/M) - 1) / τ``.

    After every τ of work a checkpoint stops the job for δ. A failure, every M in the mean and also
    while it restarts or writes, throws it back to the last checkpoint after a restart of R. Exact
    for failures without memory and many checkpoints; infinite where nothing is ever done. Source:
    Daly, Future Generation Computer Systems 22, 2006, his complete cost function.

    As in his figure 4, M of 6 h, R of 10 min, δ of 5 min: at the best interval 500 h of work take

    >>> f"{500 * time_factor(57 * 60, 300, 600, 6 * 3600):.0f} h"
    '610 h'

    OPT-175B, 25.0 days of iterations (300B tokens at 147 TFLOP/s on each of 992 A100, arXiv
    2205.01068), was restarted 53 times in 56 days (a talk of its authors). Ten minutes each
    explain 25.7 days; the 56 need 20 hours each:

    >>> [f"{25 * time_factor(1900, 20, R, 56 * 86400 / 53):.1f} days" for R in (600, 20 * 3600)]
    ['25.7 days', '56.2 days']

    Llama 3 405B: an effective training time of more than 90 % (arXiv 2407.21783, section 3.3.4),
    with a failure every 3.1 h; of checkpoints of 2.8 s, restarts of ten minutes and the best
    interval

    >>> f"{1 / time_factor(252, 2.8, 603, node_mtbf_s(8) / 2048):.1%}"
    '92.6%'
    """
    with np.errstate(over="ignore"):
        again = np.expm1((np.asarray(interval_s) + stop_s) / mtbf_s)
        return np.asarray(mtbf_s * np.exp(restart_s / mtbf_s) * again / interval_s)


def learning_rates(
    num_params: float, total_tokens: float, batch_tokens: float
) -> tuple[float, float]:
    """Peak learning rates of AdamW for a batch, by DeepSeek's law and by Step Law.

    With N parameters without embeddings and ``C = 6 · N · tokens``: ``0.3118 · C^-0.1250`` at
    batches of ``0.2920 · C^0.3271`` tokens (DeepSeek LLM, arXiv 2401.02954, equation 1), and
    ``1.79 · N^-0.713 · tokens^0.307`` at ``0.58 · tokens^0.571`` (Step Law, arXiv 2503.04715).
    Another batch scales with ``sqrt(batch / best)`` (Malladi et al. 2022, arXiv 2205.10287) up to
    the critical one, ``22.91 · tokens^0.47`` (Zhang et al. 2024, arXiv 2410.21676). All were fitted
    on a few billion parameters at most: where to begin, never a promise.

    Llama 3 405B took 8e-5 with batches of 16M tokens (arXiv 2407.21783, table 3):

    >>> [f"{rate:.1e}" for rate in learning_rates(401e9, 15.6e12, 16e6)]
    ['9.6e-05', '9.6e-05']
    """
    flops = 6.0 * num_params * total_tokens
    batch = min(batch_tokens, 22.91 * total_tokens**0.47)
    deepseek = 0.3118 * flops**-0.1250 * math.sqrt(batch / (0.2920 * flops**0.3271))
    step_best = 0.58 * total_tokens**0.571
    step_law = 1.79 * num_params**-0.713 * total_tokens**0.307 * math.sqrt(batch / step_best)
    return deepseek, step_law


@dataclass(frozen=True, kw_only=True)
class JobAssumptions:
    """Assumptions about storage and failures; None is filled in as ``Job`` defines."""

    storage_bytes_per_s: float | None = None
    """Bandwidth of the file system, all nodes together."""
    node_mtbf_s: float | None = None
    """Mean seconds between failures of one node."""
    restart_s: float = RESTART_S
    """Seconds from a failure until the checkpoint is loaded."""
    interval_s: float | None = None
    """Seconds of work between checkpoints."""
    is_async: bool = False
    """Only the copy to host memory stops training."""


def _total(parts: Parts) -> float:
    return sum(float(part.total) for part in parts.values())


@dataclass(frozen=True, kw_only=True)
class Job:
    """A plan run to the end of its tokens; needs ``total_tokens`` of the plan's job."""

    plan: Plan
    terms: JobAssumptions

    @property
    def node(self) -> NodeSpec:
        """Every node that the job holds."""
        return self.plan.context.cluster.node

    @property
    def num_nodes(self) -> int:
        """Nodes that the plan takes, part of one as one."""
        return self.plan.num_nodes

    @property
    def num_gpus(self) -> int:
        """GPUs that work."""
        return self.plan.num_gpus

    @property
    def iteration_s(self) -> float:
        """Seconds of one step."""
        return self.plan.estimate.iter_time_s

    @property
    def total_tokens(self) -> int:
        """Tokens of the whole job."""
        return self.plan.context.job.total_tokens or 0

    @property
    def useful_s(self) -> float:
        """Seconds of iterations, without checkpoints and failures."""
        return job_time_s(self.iteration_s, self.plan.context.job)

    @cached_property
    def saved_params(self) -> int:
        """Parameters of a checkpoint: all, or those of the adapters that are trained."""
        context = self.plan.context
        training = context.traits.training
        return (
            adapter_params(context.model, training, context.traits.kernels)
            if training.is_frozen
            else count_parameters(context.model)
        )

    @cached_property
    def bytes_per_param(self) -> tuple[float, float, float]:
        """Bytes of weights besides the master copy, of that copy, and of the optimizer states.

        Where the fp32 shard is what frameworks keep and save (FSDP), no further weights are.
        """
        context = self.plan.context
        traits = traits_at_precision(context.traits, context.job.precision)
        states, given = traits.states, traits.optimizer.master_bytes
        master = states.master_weight_bytes if given is None else given
        weights = states.zero3_weight_bytes if master else states.weight_bytes
        # Of the optimizer, mean over all that is trained.
        means = mean_states(context.model, context.traits.optimizer)
        state_bytes = means.layer
        if not context.traits.training.is_frozen:
            first = _total(embedding_params(context.model))
            last = _total(head_params(context.model))
            inner = self.saved_params - first - last
            whole = inner * means.layer + first * means.first + last * means.last
            state_bytes = whole / self.saved_params
        return weights, master, state_bytes * states.optimizer_state_fraction

    @cached_property
    def checkpoint_bytes(self) -> float:
        """Bytes of one checkpoint."""
        return checkpoint_bytes(self.saved_params, *self.bytes_per_param)

    @property
    def storage_bytes_per_s(self) -> float:
        """Bandwidth of the file system: as given, or Llama 3's per GPU."""
        return self.terms.storage_bytes_per_s or STORAGE_BYTES_PER_S_PER_GPU * self.num_gpus

    @property
    def node_bytes_per_s(self) -> float:
        """Most that a node writes: through its ports, or from its GPUs to the host."""
        from_gpus = self.node.num_accelerators * self.node.host_link_bytes_per_s
        return min(self.node.nic_bytes_per_s or from_gpus, from_gpus)

    @cached_property
    def write_s(self) -> float:
        """Seconds to write one checkpoint, and to read one back."""
        rates = (self.storage_bytes_per_s, self.num_nodes, self.node_bytes_per_s)
        return write_s(self.checkpoint_bytes, *rates)

    @cached_property
    def stop_s(self) -> float:
        """Seconds for which one checkpoint stops training.

        An asynchronous one for the copy of every GPU's part to the host; writing goes on beside
        training (CheckFreq, Mohan et al., FAST 2021), and what it takes of the network is left out.
        """
        if not self.terms.is_async:
            return self.write_s
        copy_bytes_per_s = self.num_gpus * self.node.host_link_bytes_per_s
        return min(self.checkpoint_bytes / copy_bytes_per_s, self.write_s)

    @property
    def node_mtbf_s(self) -> float:
        """Between failures of one node: as given, or Llama 3's by its GPUs."""
        return self.terms.node_mtbf_s or node_mtbf_s(self.node.num_accelerators)

    @property
    def mtbf_s(self) -> float:
        """Between failures of the job: any node's failure stops it."""
        return self.node_mtbf_s / self.num_nodes

    @property
    def lost_s(self) -> float:
        """Seconds lost per failure besides work since the last checkpoint: restart and reading it.

        An asynchronous checkpoint is worth something only once it is written, so that long more.
        """
        times = 2.0 if self.terms.is_async else 1.0
        return self.terms.restart_s + times * self.write_s

    @property
    def daly_s(self) -> float:
        """Interval by Daly."""
        return daly_interval_s(self.stop_s, self.mtbf_s)

    @cached_property
    def interval_iterations(self) -> int:
        """Between checkpoints: as given or by Daly; none begins before the last is written."""
        least_s = self.write_s if self.terms.is_async else 0.0
        wanted_s = max(self.terms.interval_s or self.daly_s, least_s)
        num_iterations = math.ceil(self.total_tokens / self.plan.context.job.tokens_per_iteration)
        return min(max(1, round(wanted_s / self.iteration_s)), num_iterations)

    @property
    def interval_s(self) -> float:
        """Seconds of work between checkpoints, in whole iterations."""
        return self.interval_iterations * self.iteration_s

    @cached_property
    def factor(self) -> float:
        """Elapsed over useful time."""
        return float(time_factor(self.interval_s, self.stop_s, self.lost_s, self.mtbf_s))

    def check(self) -> None:
        """Raise InputError where the job is less than an iteration, or never ends."""
        batch = self.plan.context.job.tokens_per_iteration
        if self.total_tokens < batch:
            message = f"less than one batch of {batch:,} tokens; given {self.total_tokens:,}"
            raise InputError.single("command line", "--tokens", message)
        # Elapsed over useful time from which on a job is said never to end.
        if not self.factor < 100.0:
            spans = map(format_seconds, (self.mtbf_s, self.interval_s, self.lost_s))
            message = (
                "the job never ends: a failure every {}, but a checkpoint every {} and restarts of "
                "{}; --checkpoint-interval, --restart, --storage-gb-per-s or fewer nodes change it"
            )
            raise InputError.single("command line", "--node-mtbf", message.format(*spans))

    @property
    def learning_rates(self) -> tuple[float, float] | None:
        """Peaks of AdamW in pre-training; None of adapters, mixtures and other optimizers."""
        context, model = self.plan.context, self.plan.context.model
        is_adam = context.traits.optimizer.name.startswith("adam")
        if context.traits.training.is_frozen or model.moe is not None or not is_adam:
            return None
        ends = _total(embedding_params(model)) + _total(head_params(model))
        inner_params = count_active_parameters(model) - ends
        return learning_rates(inner_params, self.total_tokens, context.job.tokens_per_iteration)

    @property
    def goodput(self) -> float:
        """Useful over elapsed time."""
        return 1.0 / self.factor

    @property
    def elapsed_s(self) -> float:
        """Seconds from the first iteration to the last, including checkpoints and failures."""
        return self.useful_s * self.factor

    @property
    def num_failures(self) -> float:
        """Expected number of failures."""
        return self.elapsed_s / self.mtbf_s

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of the elapsed time."""
        return gpu_hours(float(self.num_gpus), self.elapsed_s)

    @property
    def cost_usd(self) -> float | None:
        """Cost of the elapsed time; None where hwdb lacks a price."""
        return cost_usd(self.gpu_hours, self.node)

    @property
    def energy_kwh(self) -> float | None:
        """Energy of the elapsed time, accelerators at rated power; None where that is not known."""
        return energy_kwh(self.gpu_hours, self.node.accelerator)

    @property
    def token_bytes(self) -> int:
        """Bytes of a stored token."""
        # Megatron-LM, DType.optimal_dtype of megatron/core/datasets/indexed_dataset.py
        return 2 if self.plan.context.model.vocab_size < 65_500 else 4

    @property
    def input_bytes_per_s(self) -> float:
        """Read of the data set while iterations run: tokens, each once."""
        tokens_per_s = self.plan.context.job.tokens_per_iteration / self.iteration_s
        return tokens_per_s * self.token_bytes
