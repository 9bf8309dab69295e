"""The search by brute force: every strategy, split, count of policies and set of modules.

Uses ``enumerate_space``, ``stage_model``, ``iteration_s``, ``fits`` and ``fits_chunks``, no bound,
table, relaxation or solver.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product

import numpy as np
from hypothesis import strategies as st

from planner.cost.build import stage_model
from planner.cost.context import Context, with_modules
from planner.cost.module_sets import module_sets
from planner.cost.policies import offers_activation_offload
from planner.cost.stage import StageModel, fits, iteration_s, stage_peak_bytes
from planner.search.space.interleaving import fits_chunks
from planner.search.space.narrow import KINDS, Narrowing
from planner.search.space.space import EVERYTHING, dimension_values, enumerate_space
from planner.spec.cluster import ClusterSpec
from planner.spec.model import ModelSpec, MoeSpec
from planner.spec.strategy import SCHEDULES

AT_ONCE = 8_000
"""Splits of rows priced at once."""
PROFILES = (
    ("megatron", "current"),
    ("megatron", "zero-bubble"),
    ("deepspeed", "current"),
    ("torchtitan", "eager"),
    ("megatron", "classic"),
    ("deepspeed", "megatron"),
    ("torchtitan", "current"),
)
Splits = tuple[np.ndarray, np.ndarray]
ModuleSets = tuple[tuple[str, ...] | None, ...]


@cache
def stage_policies(num_layers: int, kinds: tuple[str, ...]) -> list[tuple[int, ...]]:
    """Every count of layers under each policy of a stage whose layers are each of a kind."""
    counts = [range(num_layers + 1) if kind in kinds else range(1) for kind in KINDS]
    return [chosen[1:] for chosen in product(*counts) if sum(chosen) == num_layers]


@cache
def all_splits(num_layers: int, num_stages: int, kinds: tuple[str, ...]) -> Splits:
    """Every split: layers (S x P) and policies (K x S x P)."""
    layers, counts = [], []
    for cuts in combinations(range(1, num_layers), num_stages - 1):
        stages = np.diff([0, *cuts, num_layers]).tolist()
        for chosen in product(*(stage_policies(n, kinds) for n in stages)):
            layers.append(stages)
            counts.append(chosen)
    shaped = np.array(counts, dtype=float).reshape(len(layers), num_stages, len(KINDS) - 1)
    return np.array(layers, dtype=float).reshape(-1, num_stages), shaped.transpose(2, 0, 1)


def needs_equal_chunks(model: StageModel) -> np.ndarray:
    """Only interleaved 1F1B, where the framework takes a layout, has uneven chunks."""
    is_1f1b = model.strategy.schedule == SCHEDULES.index("1f1b")
    return (model.strategy.vpp > 1) & ~(is_1f1b & model.uneven_stages)


def best_of_rows(
    model: StageModel, num_layers: int, kinds: tuple[str, ...], offered: np.ndarray
) -> np.ndarray:
    """Least iteration time of every row over all its splits, infinite where nothing fits."""
    best = np.full(len(model), np.inf)
    keys = np.stack(
        [model.strategy.pp, model.strategy.vpp, needs_equal_chunks(model), offered], axis=1
    )
    for pp, vpp, equal, is_offered in np.unique(keys, axis=0).tolist():
        rows = np.flatnonzero((keys == [pp, vpp, equal, is_offered]).all(axis=1))
        here = kinds if is_offered else tuple(kind for kind in kinds if kind != "offloaded")
        layers, counts = all_splits(num_layers, pp, here)
        legal = (layers == layers[:, :1]).all(axis=1) if equal else fits_chunks(layers, [vpp])
        layers, counts = layers[legal], counts[:, legal]
        if len(layers):
            best[rows] = best_splits(model.take(rows), layers, counts)
    return best


def best_splits(model: StageModel, layers: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Least time of every row over the given splits."""
    found, step = [], max(AT_ONCE // len(layers), 1)
    for start in range(0, len(model), step):
        rows = np.arange(start, min(start + step, len(model)))
        index = np.repeat(rows, len(layers))
        copies = np.tile(np.arange(len(layers)), len(rows))
        legal = fits(model.take(index), layers[copies], counts[:, copies])
        index, copies = index[legal], copies[legal]
        times = np.full(len(legal), np.inf)
        if len(index):
            times[legal] = iteration_s(model.take(index), layers[copies], counts[:, copies])
        found.append(times.reshape(len(rows), len(layers)).min(axis=1))
    return np.concatenate(found) if found else np.zeros(0)


@dataclass(frozen=True)
class Brute:
    """The best time of every strategy of a space; rows as enumerate_space gives them."""

    models: tuple[StageModel, ...]
    """One per set of modules."""
    per_set_s: np.ndarray
    num_gpus: np.ndarray

    @property
    def best_s(self) -> np.ndarray:
        return self.per_set_s.min(axis=0)

    @property
    def most_gpus(self) -> int:
        return int(self.num_gpus[np.isfinite(self.best_s)].max(initial=0))

    def top(self, k: int) -> list[float]:
        """The k least times on the most GPUs that can be used."""
        here = np.sort(self.best_s[self.num_gpus == self.most_gpus])[:k]
        return here[np.isfinite(here)].tolist()

    def by_gpus(self) -> dict[int, float]:
        """The least time on every number of GPUs on which something fits, ascending."""
        least = {
            int(n): float(self.best_s[self.num_gpus == n].min()) for n in np.unique(self.num_gpus)
        }
        return {n: best_s for n, best_s in least.items() if np.isfinite(best_s)}

    def take(self, rows: np.ndarray) -> "Brute":
        return Brute(
            models=tuple(model.take(rows) for model in self.models),
            per_set_s=self.per_set_s[:, rows],
            num_gpus=self.num_gpus[rows],
        )


def sets_of(context: Context) -> ModuleSets:
    """What selective recomputation may repeat: the sets to choose from, or what is selected."""
    return context.module_sets or (None,)


def force(context: Context, narrowing: Narrowing = EVERYTHING) -> Brute:
    """Price everything the space holds, with layers of the kinds allowed."""
    strategy = enumerate_space(context, narrowing).strategy
    if not len(strategy):
        return Brute(models=(), per_set_s=np.full((1, 0), np.inf), num_gpus=strategy.num_gpus)
    offered = offers_activation_offload(context, strategy)
    models = tuple(
        stage_model(with_modules(context, modules), strategy) for modules in sets_of(context)
    )
    per_set = [
        best_of_rows(model, context.model.num_blocks, narrowing.kinds, offered) for model in models
    ]
    return Brute(models=models, per_set_s=np.stack(per_set), num_gpus=strategy.num_gpus)


@dataclass(frozen=True)
class Case:
    """A small model on 1-8 GPUs with a share of the memory that one GPU would need."""

    num_layers: int
    global_batch: int
    seq_len: int
    hidden_size: int
    num_heads: int
    vocab_size: int
    num_gpus: int
    framework: tuple[str, str]
    tied: bool
    experts: int
    """0: no mixture; its first layer is dense."""
    memory_percent: int
    host_percent: int
    """Of the bytes that one GPU would need, in host memory per GPU; 0: not known."""
    schedule: int
    """Which of the schedules offered is searched, modulo their number; -1: all."""

    def context(
        self, context_of: Callable[..., Context], small_model: Callable[..., ModelSpec]
    ) -> Context:
        model = small_model(
            # A mixture has up to 23 sets of modules to choose from.
            num_layers=min(self.num_layers, 3) if self.experts else self.num_layers,
            hidden_size=self.hidden_size,
            num_heads=self.num_heads,
            num_kv_heads=self.num_heads,
            head_dim=self.hidden_size // self.num_heads,
            ffn_size=4 * self.hidden_size,
            vocab_size=self.vocab_size,
            tied_embeddings=self.tied,
            moe=(
                self.experts
                and MoeSpec(
                    num_experts=self.experts,
                    top_k=1,
                    expert_ffn_size=2 * self.hidden_size,
                    num_leading_dense_layers=1,
                )
            )
            or None,
        )
        context = context_of(
            model=model,
            cluster=f"{self.num_gpus}xh100-sxm",
            framework=self.framework[0],
            profile=self.framework[1],
            global_batch=self.global_batch,
            seq_len=self.seq_len,
        )
        # Communicators of 200 MB would be all that matters to models this small.
        overheads = replace(context.traits.overheads, communicator_bytes=1e6)
        context = replace(context, traits=replace(context.traits, overheads=overheads))
        offered = context.traits.support.schedules
        chosen = offered if self.schedule < 0 else (offered[self.schedule % len(offered)],)
        context = replace(context, schedules=chosen, module_sets=module_sets(context))
        return replace(context, cluster=scarce(context, self))


CASES = st.builds(
    Case,
    num_layers=st.sampled_from([6, 5, 4, 3, 2]),
    global_batch=st.sampled_from([4, 6, 2, 8]),
    seq_len=st.sampled_from([256, 1024]),
    hidden_size=st.sampled_from([256, 512, 1024]),
    num_heads=st.sampled_from([2, 4, 8]),
    vocab_size=st.sampled_from([1000, 32000]),
    num_gpus=st.sampled_from([8, 4, 6, 2, 3, 1]),
    framework=st.sampled_from(PROFILES),
    tied=st.booleans(),
    experts=st.sampled_from([0, 0, 0, 2]),
    memory_percent=st.sampled_from([60, 80, 45, 100, 35, 70, 52, 25, 90, 110, 15, 40]),
    host_percent=st.sampled_from([1000, 100, 30, 0]),
    schedule=st.sampled_from([-1, 0, 1, 2, 3, 4]),
)


def scarce(context: Context, case: Case) -> ClusterSpec:
    """Memory for overheads and a share of what the whole model takes on one GPU."""
    lowest = min(context.traits.support.zero_stages)
    fixed = {"tp": 1, "pp": 1, "dp": 1, "micro_batch": 1, "zero_stage": lowest, "schedule": 0}
    alone = Narrowing(values={name: (value,) for name, value in fixed.items()})
    model = stage_model(context, enumerate_space(context, alone).strategy).take(np.array([0]))
    layers = np.array([[float(context.model.num_blocks)]])
    peak = float(stage_peak_bytes(model, layers)[0, 0])
    overhead = float(model.overhead_bytes[0])
    node = context.cluster.node
    hbm = overhead + case.memory_percent / 100 * (peak - overhead)
    host = case.host_percent / 100 * (peak - overhead) * node.num_accelerators
    accelerator = replace(node.accelerator, hbm_bytes=hbm)
    node = replace(node, accelerator=accelerator, host_memory_bytes=host or None)
    return replace(context.cluster, node=node)


KIND_CHOICES = (
    KINDS,
    ("none", "selective", "full"),
    ("none", "selective"),
    ("none", "full"),
    ("none", "offloaded"),
    ("none",),
    ("selective", "full"),
    ("selective",),
    ("full",),
)
"""What --forbid offload and comparisons of recompute can leave."""


@st.composite
def a_few_values(draw: st.DrawFn, context: Context) -> Narrowing:
    """All of the space, or one or two values of one dimension."""
    values = dimension_values(context)
    free = [name for name, every in values.items() if len(every) > 1 and name != "schedule"]
    name = draw(st.sampled_from(["", *free]))
    if not name:
        return EVERYTHING
    chosen = draw(st.lists(st.sampled_from(list(values[name])), min_size=1, max_size=2))
    return Narrowing(values={name: tuple(sorted(set(chosen)))})
