"""The job around a plan's iteration: checkpoints, failures, energy, input, and hints."""

import math
from dataclasses import dataclass, replace
from functools import cached_property

from planner.errors import InputError
from planner.job.checkpoint import (
    STORAGE_BYTES_PER_S_PER_GPU,
    checkpoint_bytes,
    copy_s,
    daly_interval_s,
    write_s,
    young_interval_s,
)
from planner.job.energy import (
    DRAWN_OF_BOARD,
    DRAWN_OF_NODE,
    GRID_G_PER_KWH,
    USUAL_PUE,
    carbon_t,
    energy_kwh,
)
from planner.job.failures import (
    RESTART_S,
    first_order_factor,
    goodput,
    job_mtbf_s,
    node_mtbf_s,
    time_factor,
)
from planner.job.tokens import input_bytes_per_s, token_bytes
from planner.layers.adapter_sizes import adapter_params
from planner.layers.optimizer_states import mean_states
from planner.layers.parameters import (
    count_parameters,
    embedding_params,
    head_params,
)
from planner.plans.job_hints import Hints, total_of
from planner.plans.objectives import cost_usd, gpu_hours, span_s
from planner.plans.plan import Plan
from planner.spec.cluster import NodeSpec
from planner.spec.precision import under_precision
from planner.units import format_seconds

HOPELESS = 100.0
"""Elapsed over useful time from which on a job is said never to end."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What is said about storage, failures and power; None is filled in as ``Job`` says."""

    storage_bytes_per_s: float | None = None
    """Of the file system, all nodes together."""
    node_mtbf_s: float | None = None
    """Mean seconds between failures of one node."""
    restart_s: float = RESTART_S
    """From a failure until the checkpoint is loaded."""
    interval_s: float | None = None
    """Of work between checkpoints."""
    is_async: bool = False
    """Only the copy to host memory stops training."""
    drawn_fraction: float | None = None
    """Of rated power, in the mean."""
    pue: float = USUAL_PUE
    grid_g_per_kwh: float = GRID_G_PER_KWH


@dataclass(frozen=True, kw_only=True)
class Power:
    """Rated power per GPU, what it includes, and how much of it is drawn."""

    rated_w_per_gpu: float
    of: str
    drawn_fraction: float


@dataclass(frozen=True, kw_only=True)
class Held:
    """Equal nodes that a job holds."""

    node: NodeSpec
    num_gpus: int
    """Of them those that work."""

    @property
    def num_nodes(self) -> int:
        """Nodes, part of one as one."""
        return math.ceil(self.num_gpus / self.node.num_accelerators)

    @property
    def node_bytes_per_s(self) -> float:
        """Most that a node writes: through its ports, or from its GPUs to the host."""
        from_gpus = self.node.num_accelerators * self.node.host_link_bytes_per_s
        return min(self.node.nic_bytes_per_s or from_gpus, from_gpus)

    @property
    def rated_power(self) -> tuple[float, str, float] | None:
        """Watts per GPU, of what, the share that is drawn; None where no power is known.

        Of the node where its power is known, else of the board.
        """
        if self.node.power_w is not None:
            of_node = self.node.power_w / self.node.num_accelerators
            return of_node, "its part of the node", DRAWN_OF_NODE
        board = self.node.accelerator.tdp_w
        return None if board is None else (board, "the board alone", DRAWN_OF_BOARD)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A plan run to the end of its tokens; needs ``total_tokens`` of the plan's job."""

    plan: Plan
    """Of several kinds of nodes as the first of them have it."""
    cluster: str
    """By its name."""
    held: tuple[Held, ...]
    """By kind of node."""
    iteration_s: float
    mfu: float
    terms: Terms

    def of_tokens(self, number: int) -> "Job":
        """The same over so many tokens."""
        context = self.plan.context
        whole = replace(context.job, total_tokens=number)
        return replace(self, plan=replace(self.plan, context=replace(context, job=whole)))

    @property
    def num_nodes(self) -> int:
        """Nodes that the plan takes."""
        return sum(each.num_nodes for each in self.held)

    @property
    def num_gpus(self) -> int:
        """GPUs that work."""
        return sum(each.num_gpus for each in self.held)

    @property
    def total_tokens(self) -> int:
        """Of the whole job."""
        return self.plan.context.job.total_tokens or 0

    @property
    def num_iterations(self) -> int:
        """Steps, the last one in part."""
        return math.ceil(self.total_tokens / self.plan.context.job.tokens_per_iteration)

    @property
    def useful_s(self) -> float:
        """Seconds of iterations, without checkpoints and failures."""
        return span_s(self.iteration_s, self.plan.context.job)

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
        """Of weights beside the master copy, of that copy, and of the optimizer's states.

        Where the fp32 shard is what frameworks keep and save (FSDP), no further weights are.
        """
        context = self.plan.context
        traits = under_precision(context.traits, context.job.precision)
        states, optimizer = traits.states, traits.optimizer
        given = optimizer.master_bytes
        master = states.master_weight_bytes if given is None else given
        weights = states.zero3_weight_bytes if master else states.weight_bytes
        return weights, master, self._state_bytes * states.optimizer_state_fraction

    @property
    def _state_bytes(self) -> float:
        """Of the optimizer, mean over all that is trained."""
        context = self.plan.context
        means, model = mean_states(context.model, context.traits.optimizer), context.model
        if context.traits.training.is_frozen:
            return means.layer
        first, last = (total_of(part(model)) for part in (embedding_params, head_params))
        inner = self.saved_params - first - last
        whole = inner * means.layer + first * means.first + last * means.last
        return whole / self.saved_params

    @cached_property
    def checkpoint_bytes(self) -> float:
        """Of one checkpoint."""
        return float(checkpoint_bytes(self.saved_params, *self.bytes_per_param))

    @property
    def storage_bytes_per_s(self) -> float:
        """Of the file system: as given, or Llama 3's per GPU."""
        usual = STORAGE_BYTES_PER_S_PER_GPU * self.num_gpus
        return self.terms.storage_bytes_per_s or usual

    @property
    def node_bytes_per_s(self) -> float:
        """Most that a node writes; of several kinds the slowest, for which the others wait."""
        return min(each.node_bytes_per_s for each in self.held)

    @cached_property
    def write_s(self) -> float:
        """To write one checkpoint, and to read one back."""
        return float(
            write_s(
                self.checkpoint_bytes,
                self.storage_bytes_per_s,
                self.num_nodes,
                self.node_bytes_per_s,
            )
        )

    @cached_property
    def stop_s(self) -> float:
        """By which one checkpoint stops training."""
        if not self.terms.is_async:
            return self.write_s
        link = min(each.node.host_link_bytes_per_s for each in self.held)
        copied = float(copy_s(self.checkpoint_bytes, self.num_gpus, link))
        return min(copied, self.write_s)

    @property
    def node_mtbf_s(self) -> float:
        """Between failures of one node, in the mean over all."""
        return self.mtbf_s * self.num_nodes

    @cached_property
    def mtbf_s(self) -> float:
        """Between failures of the job: kinds of nodes fail beside each other."""
        given = self.terms.node_mtbf_s
        spans = (
            job_mtbf_s(given or node_mtbf_s(each.node.num_accelerators), each.num_nodes)
            for each in self.held
        )
        return 1.0 / sum(1.0 / float(span) for span in spans)

    @property
    def lost_s(self) -> float:
        """By each failure, beside the work since the last checkpoint: restart and reading it.

        An asynchronous checkpoint is worth something only once it is written, so that long more.
        """
        return self.terms.restart_s + self.write_s * (2.0 if self.terms.is_async else 1.0)

    @property
    def young_s(self) -> float:
        """Interval by Young."""
        return float(young_interval_s(self.stop_s, self.mtbf_s))

    @property
    def daly_s(self) -> float:
        """Interval by Daly."""
        return float(daly_interval_s(self.stop_s, self.mtbf_s))

    @cached_property
    def interval_iterations(self) -> int:
        """Between checkpoints: as given or by Daly; none begins before the last is written."""
        least_s = self.write_s if self.terms.is_async else 0.0
        wanted_s = max(self.terms.interval_s or self.daly_s, least_s)
        return min(max(1, round(wanted_s / self.iteration_s)), self.num_iterations)

    @property
    def interval_s(self) -> float:
        """Of work between checkpoints, in whole iterations."""
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
        if not self.factor < HOPELESS:
            raise InputError.single(
                "command line",
                "--node-mtbf",
                f"the job never ends: a failure every {format_seconds(self.mtbf_s)}, but a "
                f"checkpoint every {format_seconds(self.interval_s)} and restarts of "
                f"{format_seconds(self.lost_s)}; --checkpoint-interval, --restart, "
                "--storage-gb-per-s or fewer nodes change it",
            )

    @property
    def first_order_factor(self) -> float:
        """The same to first order."""
        return float(first_order_factor(self.interval_s, self.stop_s, self.lost_s, self.mtbf_s))

    @property
    def goodput(self) -> float:
        """Useful over elapsed time."""
        return float(goodput(self.factor))

    @property
    def elapsed_s(self) -> float:
        """From the first iteration to the last, checkpoints and failures within."""
        return self.useful_s * self.factor

    @property
    def num_failures(self) -> float:
        """To be expected."""
        return self.elapsed_s / self.mtbf_s

    @property
    def gpu_hours(self) -> float:
        """Of the elapsed time."""
        return gpu_hours(float(self.num_gpus), self.elapsed_s)

    @property
    def cost_usd(self) -> float | None:
        """Of the elapsed time; None where hwdb lacks a price."""
        prices = [
            cost_usd(gpu_hours(float(each.num_gpus), self.elapsed_s), each.node)
            for each in self.held
        ]
        known = [price for price in prices if price is not None]
        return sum(known) if len(known) == len(prices) else None

    @cached_property
    def power(self) -> Power | None:
        """In the mean over all GPUs; None where some power is not known."""
        found = [each.rated_power for each in self.held]
        known = [each for each in found if each is not None]
        if len(known) < len(found):
            return None
        shares = [each.num_gpus / self.num_gpus for each in self.held]
        rated = sum(share * watts for share, (watts, _, _) in zip(shares, known, strict=True))
        drawn = sum(s * watts * usual for s, (watts, _, usual) in zip(shares, known, strict=True))
        given = self.terms.drawn_fraction
        return Power(
            rated_w_per_gpu=rated,
            of=" or ".join(dict.fromkeys(of for _, of, _ in known)),
            drawn_fraction=drawn / rated if given is None else given,
        )

    @property
    def energy_kwh(self) -> float | None:
        """Of the data centre; None where no power is known."""
        power = self.power
        if power is None:
            return None
        drawn = energy_kwh(
            self.gpu_hours, power.rated_w_per_gpu, power.drawn_fraction, self.terms.pue
        )
        return float(drawn)

    @property
    def carbon_t(self) -> float | None:
        """Tonnes of CO2 of that energy."""
        energy = self.energy_kwh
        return None if energy is None else float(carbon_t(energy, self.terms.grid_g_per_kwh))

    @property
    def token_bytes(self) -> int:
        """Of a stored token."""
        return token_bytes(self.plan.context.model.vocab_size)

    @property
    def input_bytes_per_s(self) -> float:
        """Read of the data set while iterations run."""
        tokens_per_s = self.plan.context.job.tokens_per_iteration / self.iteration_s
        return float(input_bytes_per_s(tokens_per_s, self.token_bytes))

    @cached_property
    def hints(self) -> Hints | None:
        """None where adapters are trained, of which the laws say nothing."""
        if self.plan.context.traits.training.is_frozen:
            return None
        return Hints(plan=self.plan, total_tokens=self.total_tokens)


def job_of(plan: Plan, terms: Terms) -> Job:
    """The job of a plan on equal nodes."""
    return Job(
        plan=plan,
        cluster=plan.context.cluster.name,
        held=(Held(node=plan.context.cluster.node, num_gpus=plan.strategy.num_gpus),),
        iteration_s=plan.estimate.iter_time_s,
        mfu=plan.estimate.mfu,
        terms=terms,
    )
