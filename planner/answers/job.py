"""The job around a plan's iteration: checkpoints, failures, money, energy, input."""

import math
from dataclasses import dataclass, replace
from functools import cached_property

from planner.answers import job_formulas as formulas
from planner.answers.base import Plan
from planner.errors import InputError
from planner.layers.adapters import adapter_params
from planner.layers.parameters import (
    Parts,
    count_parameters,
    embedding_params,
    head_params,
)
from planner.layers.weights import mean_states
from planner.query.objectives import cost_usd, energy_kwh, gpu_hours, job_time_s
from planner.spec.cluster import NodeSpec
from planner.spec.traits import traits_at_precision
from planner.units import format_seconds


@dataclass(frozen=True, kw_only=True)
class JobAssumptions:
    """Assumptions about storage and failures; None is filled in as ``Job`` defines."""

    storage_bytes_per_s: float | None = None
    """Bandwidth of the file system, all nodes together."""
    node_mtbf_s: float | None = None
    """Mean seconds between failures of one node."""
    restart_s: float = formulas.RESTART_S
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

    def of_tokens(self, number: int) -> "Job":
        """The same over so many tokens."""
        context = self.plan.context.with_job(total_tokens=number)
        return replace(self, plan=replace(self.plan, context=context))

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
    def num_iterations(self) -> int:
        """Steps, the last one in part."""
        return math.ceil(self.total_tokens / self.plan.context.job.tokens_per_iteration)

    @property
    def useful_s(self) -> float:
        """Seconds of iterations, without checkpoints and failures."""
        return job_time_s(self.iteration_s, self.plan.context.job)

    @cached_property
    def saved_params(self) -> int:
        """Parameters of a checkpoint: all, or those of the adapters that are trained."""
        context = self.plan.context
        training = context.traits.training
        if training.is_frozen:
            joined = context.traits.kernels.joins_adapters
            return adapter_params(context.model, training, joined=joined)
        return count_parameters(context.model)

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
        return formulas.checkpoint_bytes(self.saved_params, *self.bytes_per_param)

    @property
    def storage_bytes_per_s(self) -> float:
        """Bandwidth of the file system: as given, or Llama 3's per GPU."""
        usual = formulas.STORAGE_BYTES_PER_S_PER_GPU * self.num_gpus
        return self.terms.storage_bytes_per_s or usual

    @property
    def node_bytes_per_s(self) -> float:
        """Most that a node writes: through its ports, or from its GPUs to the host."""
        from_gpus = self.node.num_accelerators * self.node.host_link_bytes_per_s
        return min(self.node.nic_bytes_per_s or from_gpus, from_gpus)

    @cached_property
    def write_s(self) -> float:
        """Seconds to write one checkpoint, and to read one back."""
        rates = (self.storage_bytes_per_s, self.num_nodes, self.node_bytes_per_s)
        return formulas.write_s(self.checkpoint_bytes, *rates)

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
        return self.terms.node_mtbf_s or formulas.node_mtbf_s(self.node.num_accelerators)

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
    def young_s(self) -> float:
        """Interval by Young."""
        return formulas.young_interval_s(self.stop_s, self.mtbf_s)

    @property
    def daly_s(self) -> float:
        """Interval by Daly."""
        return formulas.daly_interval_s(self.stop_s, self.mtbf_s)

    @cached_property
    def interval_iterations(self) -> int:
        """Between checkpoints: as given or by Daly; none begins before the last is written."""
        least_s = self.write_s if self.terms.is_async else 0.0
        wanted_s = max(self.terms.interval_s or self.daly_s, least_s)
        return min(max(1, round(wanted_s / self.iteration_s)), self.num_iterations)

    @property
    def interval_s(self) -> float:
        """Seconds of work between checkpoints, in whole iterations."""
        return self.interval_iterations * self.iteration_s

    @cached_property
    def factor(self) -> float:
        """Elapsed over useful time."""
        spans_s = (self.interval_s, self.stop_s, self.lost_s, self.mtbf_s)
        return float(formulas.time_factor(*spans_s))

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
