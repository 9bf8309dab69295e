"""The search by brute force: every strategy, policy, split, count of layers and set of modules.

Uses ``enumerate_space``, ``stage_model``, ``iteration_s``, ``fits``, ``fits_chunks``,
``chunk_layers`` and the declared penalties, no bound, table, relaxation or solver. What a policy
allows is derived here once more: counts of layers per stage, chunk by chunk.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product
from types import SimpleNamespace

import numpy as np
from contexts import context_of, small_model, with_hbm, with_traits
from enumerated import enumerate_space
from hypothesis import strategies as st

from planner.cost.context import Context, with_modules
from planner.cost.module_sets import module_sets
from planner.cost.policies import offers_activation_offload
from planner.cost.stage import StageModel
from planner.cost.stage_model import stage_model
from planner.schedules.closed_form import chunk_layers
from planner.search.ranking.penalties import evidence_penalty, policy_penalty, uneven_penalty
from planner.search.space.interleaving import fits_chunks
from planner.search.space.narrow import Narrowing
from planner.search.space.space import EVERYTHING, dimension_values
from planner.spec.cluster import ClusterSpec
from planner.spec.model import ModelSpec, MoeSpec
from planner.spec.strategy import LAYER_POLICY_NAMES, SCHEDULES, StrategyColumns

AT_ONCE = 8_000  # Splits of rows priced at once
PROFILES = (
    *("megatron current", "megatron zero-bubble", "deepspeed current", "torchtitan eager"),
    *("megatron classic", "deepspeed megatron", "torchtitan current"),
)
ModuleSets = tuple[tuple[str, ...] | None, ...]
Splits = tuple[np.ndarray, np.ndarray]
Said = tuple[str, tuple[str, ...]]
"""What is said of all layers: ``mixed`` or ``all`` of some kinds, or ``part`` of one kind."""
MIXED = Narrowing(allowed=frozenset({"mixed-layers"}))
SCOPES = (EVERYTHING, MIXED)
LAYOUT = ("dp", "tp", "pp", "cp", "ep", "etp", "zero_stage")


def said_of(context: Context, narrowing: Narrowing) -> list[Said]:
    support = context.traits.support
    kinds = tuple(
        kind for kind in LAYER_POLICY_NAMES if kind in support.policies and kind in narrowing.kinds
    )
    if "mixed-layers" in narrowing.allowed or support.policy_scope == "layers":
        return [("mixed" if len(kinds) > 1 else "all", kinds)] if kinds else []
    in_chunks = support.policy_scope == "chunks"
    said: list[Said] = [("all", (kind,)) for kind in kinds if kind != "offloaded" or not in_chunks]
    if in_chunks and "none" in kinds:
        said += [("part", (kind,)) for kind in kinds if kind in ("full", "offloaded")]
    return said


@cache
def stage_policies(num_layers: int, kinds: tuple[str, ...]) -> list[tuple[int, ...]]:
    counts = [range(num_layers + 1) if kind in kinds else range(1) for kind in LAYER_POLICY_NAMES]
    return [chosen[1:] for chosen in product(*counts) if sum(chosen) == num_layers]


def cuts_of(num_layers: int, num_stages: int) -> list[list[int]]:
    every = combinations(range(1, num_layers), num_stages - 1)
    return [np.diff([0, *cuts, num_layers]).tolist() for cuts in every]


def shaped(layers: list[list[int]], counts: list[list[tuple[int, ...]]], num_stages: int) -> Splits:
    """Layers (S x P) and policies (K x S x P)."""
    every = np.array(counts, dtype=float).reshape(
        len(layers), num_stages, len(LAYER_POLICY_NAMES) - 1
    )
    return np.array(layers, dtype=float).reshape(-1, num_stages), every.transpose(2, 0, 1)


@cache
def all_splits(num_layers: int, num_stages: int, kinds: tuple[str, ...]) -> Splits:
    layers, counts = [], []
    for stages in cuts_of(num_layers, num_stages):
        for chosen in product(*(stage_policies(n, kinds) for n in stages)):
            layers.append(stages)
            counts.append(list(chosen))
    return shaped(layers, counts, num_stages)


@cache
def part_splits(num_layers: int, num_stages: int, vpp: int, kind: str) -> Splits:
    """Every split whose chunks have their first N layers, and not all of them, under a kind."""
    layers, counts = [], []
    for stages in cuts_of(num_layers, num_stages):
        if not fits_chunks(np.array([stages], dtype=float), [vpp])[0]:
            continue
        chunks = np.array(chunk_layers(tuple(stages), vpp)).reshape(vpp, num_stages)
        for number in range(1, int(chunks.min()) + 1):
            if number < chunks.max():
                under = np.minimum(number, chunks).sum(axis=0).tolist()
                layers.append(stages)
                counts.append(
                    [tuple(n * (k == kind) for k in LAYER_POLICY_NAMES[1:]) for n in under]
                )
    return shaped(layers, counts, num_stages)


def is_regular(layers: np.ndarray) -> np.ndarray:
    """Equal stages, but that the last, or the last and the first, may hold a layer less."""
    lacks = layers.max(axis=1, keepdims=True) - layers
    number = lacks.sum(axis=1)
    last, first = lacks[:, -1] == 1, lacks[:, 0] == 1
    return np.asarray((number == 0) | ((number == 1) & last) | ((number == 2) & last & first))


def is_most(layers: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """More than half of the layers of a full chunk are under the policy of a part."""
    most = counts.sum(axis=0).max(axis=1, initial=0.0)
    return np.asarray(2.0 * most * layers.shape[1] > layers.sum(axis=1))


@dataclass(frozen=True)
class Asked:
    said: Said
    uneven: float = 1.0  # Factor of a split that is not regular
    most: float = 1.0  # Factor of a part that is most of the layers
    longest_s: np.ndarray | None = None
    """Per row: splits that take longer, not weighed, do not count."""

    def splits(self, num_layers: int, pp: int, vpp: int, *, is_offered: bool) -> Splits:
        how, kinds = self.said
        if how == "part":
            own = part_splits(num_layers, pp, vpp, kinds[0])
            return own if is_offered or kinds != ("offloaded",) else (own[0][:0], own[1][:, :0])
        here = kinds if is_offered else tuple(kind for kind in kinds if kind != "offloaded")
        return all_splits(num_layers, pp, here)


def best_of_rows(
    model: StageModel, num_layers: int, asked: Asked, offered: np.ndarray
) -> np.ndarray:
    """Least iteration time of every row over all its splits, infinite where nothing fits."""
    best, columns = np.full(len(model), np.inf), model.strategy
    # Only interleaved 1F1B, where the framework takes a layout, has uneven chunks.
    equal_chunks = (columns.vpp > 1) & (columns.schedule != SCHEDULES.index("1f1b"))
    keys = np.stack([columns.pp, columns.vpp, equal_chunks, offered], axis=1)
    for pp, vpp, equal, is_offered in np.unique(keys, axis=0).tolist():
        rows = np.flatnonzero((keys == [pp, vpp, equal, is_offered]).all(axis=1))
        layers, counts = asked.splits(num_layers, pp, vpp, is_offered=bool(is_offered))
        legal = (layers == layers[:, :1]).all(axis=1) if equal else fits_chunks(layers, [vpp])
        layers, counts = layers[legal], counts[:, legal]
        if len(layers):
            longest_s = None if asked.longest_s is None else asked.longest_s[rows]
            factor = np.where(is_regular(layers), 1.0, asked.uneven)
            factor = factor * np.where(is_most(layers, counts), asked.most, 1.0)
            best[rows] = best_splits(model.take(rows), layers, counts, factor, longest_s)
    return best


def best_splits(
    model: StageModel,
    layers: np.ndarray,
    counts: np.ndarray,
    factor: np.ndarray,
    longest_s: np.ndarray | None,
) -> np.ndarray:
    """Least time of every row over the given splits, times the splits' factors."""
    found, step = [], max(AT_ONCE // len(layers), 1)
    for start in range(0, len(model), step):
        rows = np.arange(start, min(start + step, len(model)))
        index = np.repeat(rows, len(layers))
        copies = np.tile(np.arange(len(layers)), len(rows))
        legal = model.take(index).fits(layers[copies], counts[:, copies])
        index, copies = index[legal], copies[legal]
        times = np.full(len(legal), np.inf)
        if len(index):
            own = model.take(index).iteration_s(layers[copies], counts[:, copies])
            late = np.zeros(len(own), dtype=bool) if longest_s is None else own > longest_s[index]
            times[legal] = np.where(late, np.inf, own * factor[copies])
        found.append(times.reshape(len(rows), len(layers)).min(axis=1))
    return np.concatenate(found) if found else np.zeros(0)


@dataclass(frozen=True)
class Brute:
    """The best time of every strategy of a space; rows as enumerate_space gives them.

    Times are weighed where the context asks for it.
    """

    strategy: StrategyColumns
    said: tuple[Said, ...]
    models: tuple[StageModel, ...]  # one per set of modules
    per_set_s: np.ndarray  # Policies x sets of modules x strategies

    @property
    def num_gpus(self) -> np.ndarray:
        return np.asarray(self.strategy.num_gpus)

    @property
    def per_policy_s(self) -> np.ndarray:
        return self.per_set_s.min(axis=1, initial=np.inf)

    @property
    def best_s(self) -> np.ndarray:
        return self.per_policy_s.min(axis=0, initial=np.inf)

    def top(self, k: int, num_gpus: int, *, one_per_layout: bool = False) -> list[float]:
        """The k least times of rows (or layouts) on so many GPUs."""
        times = self.per_policy_s[:, self.num_gpus == num_gpus]
        if one_per_layout:
            here = self.strategy.take(self.num_gpus == num_gpus)
            keys = np.stack([getattr(here, name) for name in LAYOUT])
            _, layout = np.unique(keys, axis=1, return_inverse=True)
            best = np.full(layout.max(initial=-1) + 1, np.inf)
            np.minimum.at(best, layout.ravel(), times.min(axis=0, initial=np.inf))
            times = best
        least = np.sort(times, axis=None)[:k]
        return least[np.isfinite(least)].tolist()

    def by_gpus(self) -> dict[int, float]:
        """The least time on every number of GPUs on which something fits, ascending."""
        least = {
            int(n): float(self.best_s[self.num_gpus == n].min()) for n in np.unique(self.num_gpus)
        }
        return {n: best_s for n, best_s in least.items() if np.isfinite(best_s)}

    def take(self, rows: np.ndarray) -> "Brute":
        return Brute(
            strategy=self.strategy.take(rows),
            said=self.said,
            models=tuple(model.take(rows) for model in self.models),
            per_set_s=self.per_set_s[..., rows],
        )


def weight_of_policy(
    context: Context, said: Said, modules: tuple[str, ...] | None, *, is_most: bool = False
) -> float:
    """What evidence for a policy makes of the time; stages that decide for themselves are free."""
    how, kinds = said
    if how == "mixed":
        return 1.0
    chosen = modules if kinds == ("selective",) else None
    return policy_penalty(kinds[0], chosen, context, partial=how == "part" and not is_most)


def force(
    context: Context,
    narrowing: Narrowing = EVERYTHING,
    longest_s: float | None = None,
    tied_s: float | None = None,
) -> Brute:
    """Price everything the space holds, with layers of the kinds allowed.

    Within a time, and within one with the penalties of what a row and its policy use.
    """
    strategy = enumerate_space(context, narrowing).strategy
    # Selective recomputation may repeat the sets to choose from, or what is selected.
    sets: ModuleSets = context.module_sets or (None,)
    every = tuple(said_of(context, narrowing))
    times = np.full((len(every), len(sets), len(strategy)), np.inf)
    if not len(strategy):
        return Brute(strategy=strategy, said=every, models=(), per_set_s=times)
    offered = offers_activation_offload(context, strategy)
    models = tuple(stage_model(with_modules(context, modules), strategy) for modules in sets)
    weight = evidence_penalty(context, strategy)
    longest = None if longest_s is None else np.full(len(strategy), longest_s)
    by_evidence = replace(context, ranking="evidence")
    penalty = evidence_penalty(by_evidence, strategy)
    for i, said in enumerate(every):
        is_free = said[0] == "mixed"
        uneven = 1.0 if is_free else uneven_penalty(context, context.model.num_blocks)
        least, most = (
            weight_of_policy(context, said, None, is_most=each) for each in (False, True)
        )
        if tied_s is not None:
            longest = tied_s / (penalty * weight_of_policy(by_evidence, said, None))
        asked = Asked(said, uneven, most / least, longest)
        for j, modules in enumerate(sets):
            if j and "selective" not in said[1]:
                continue
            best = best_of_rows(models[j], context.model.num_blocks, asked, offered)
            times[i, j] = best * weight * weight_of_policy(context, said, modules)
    return Brute(strategy=strategy, said=every, models=models, per_set_s=times)


def tiny_model(num_heads: int = 4, hidden_size: int = 512, **more: object) -> ModelSpec:
    return small_model(
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=hidden_size // num_heads,
        ffn_size=4 * hidden_size,
        **more,
    )


def tiny_context(
    model: ModelSpec, cluster: str, software: str = "megatron current", **job: int
) -> Context:
    """Communicators of 200 MB would be all that matters to models this small."""
    framework, profile = software.split()
    context = context_of(model=model, cluster=cluster, framework=framework, profile=profile, **job)
    return with_traits(context, overheads={"communicator_bytes": 1e6})


DRAWN: dict[str, Sequence[object]] = {
    "num_layers": [6, 5, 4, 3, 2],
    "global_batch": [4, 6, 2, 8],
    "seq_len": [256, 1024],
    "hidden_size": [256, 512, 1024],
    "num_heads": [2, 4, 8],
    "vocab_size": [1000, 32000],
    "num_gpus": [8, 4, 6, 2, 3, 1],
    "framework": PROFILES,
    "tied": [False, True],
    "experts": [0, 0, 0, 2],  # 0: no mixture; its first layers are dense
    "memory_percent": [60, 80, 45, 100, 35, 70, 52, 25, 90, 110, 15, 40],
    # Of the bytes that one GPU would need, in host memory per GPU; 0: not known.
    "host_percent": [1000, 100, 30, 0],
    "schedule": [-1, 0, 1, 2, 3, 4],  # Which of those offered, modulo their number; -1: all
    "scope": SCOPES,  # The framework's own policies, or any for any layer
    "more_layers": [0, 2, 4, 1, 5],  # Where policies are the framework's, which makes them few
    "ranking": ["evidence", "time"],
    "leading": [1, 2],  # Dense layers of a mixture
    "steps_all_at_once": [False, True],
}


class Case(SimpleNamespace):
    """A small model on 1-8 GPUs with a share of the memory that one GPU would need."""

    @property
    def is_mixed(self) -> bool:
        return bool(self.scope.allowed)

    def context(self) -> Context:
        # A mixture has up to 23 sets of modules to choose from, and meshes that experts lie on.
        num_layers = min(self.num_layers, 3) if self.experts else self.num_layers
        num_gpus = min(self.num_gpus, 4) if self.experts else self.num_gpus
        mixture = MoeSpec(
            num_experts=self.experts or 1,
            top_k=1,
            expert_ffn_size=2 * self.hidden_size,
            num_leading_dense_layers=1 if self.is_mixed else self.leading,
        )
        model = tiny_model(
            num_layers=num_layers + (0 if self.is_mixed else self.more_layers),
            hidden_size=self.hidden_size,
            num_heads=self.num_heads,
            vocab_size=self.vocab_size,
            tied_embeddings=self.tied,
            moe=mixture if self.experts else None,
        )
        jobs = {"global_batch": self.global_batch, "seq_len": self.seq_len}
        context = tiny_context(model, f"{num_gpus}xh100-sxm", self.framework, **jobs)
        context = with_traits(context, states={"steps_all_at_once": self.steps_all_at_once})
        offered = context.traits.support.schedules
        chosen = offered if self.schedule < 0 else (offered[self.schedule % len(offered)],)
        sets = module_sets(context)
        context = replace(context, schedules=chosen, module_sets=sets, ranking=self.ranking)
        return replace(context, cluster=scarce(context, self))


CASES = st.builds(Case, **{name: st.sampled_from(values) for name, values in DRAWN.items()})


def scarce(context: Context, case: Case) -> ClusterSpec:
    """Memory for overheads and a share of what the whole model takes on one GPU."""
    fixed = dict.fromkeys(("tp", "pp", "dp", "micro_batch"), (1,)) | {"schedule": (0,)}
    fixed["zero_stage"] = (min(context.traits.support.zero_stages),)
    alone = Narrowing(values=fixed)
    model = stage_model(context, enumerate_space(context, alone).strategy).take(np.array([0]))
    layers = np.array([[float(context.model.num_blocks)]])
    peak = float(model.peak_bytes(layers)[0, 0])
    overhead = float(model.overhead_bytes[0])
    # A byte more: no plan stands or falls with how a sum of bytes is rounded.
    hbm = overhead + case.memory_percent / 100 * (peak - overhead) + 1.0
    cluster = with_hbm(context.cluster, hbm)
    host = case.host_percent / 100 * (peak - overhead) * cluster.node.num_accelerators
    return replace(cluster, node=replace(cluster.node, host_memory_bytes=host or None))


KIND_CHOICES = (
    LAYER_POLICY_NAMES,
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
def a_few_values(draw: st.DrawFn, context: Context, scope: Narrowing = EVERYTHING) -> Narrowing:
    """All of a scope, or one or two values of one dimension."""
    values = dimension_values(context)
    free = [name for name, every in values.items() if len(every) > 1 and name != "schedule"]
    name = draw(st.sampled_from(["", *free]))
    if not name:
        return scope
    chosen = draw(st.lists(st.sampled_from(list(values[name])), min_size=1, max_size=2))
    return replace(scope, values={name: tuple(sorted(set(chosen)))})
