"""Training: which weights are trained: all of them, or low-rank adapters beside frozen ones."""

from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Literal, get_args

# ``full``: all weights; ``lora``: adapters beside frozen weights (arXiv 2106.09685); ``qlora``: the
# same beside weights in 4 bits (arXiv 2305.14314).
Mode = Literal["full", "lora", "qlora"]
# A projection of a layer with adapters, in a mixture's experts too, and the router.
Projection = Literal["q", "k", "v", "o", "gate", "up", "down", "router"]
# Besides the stacked weights of experts by their own name (PEFT's ``target_parameters``), and what
# is trained whole.
Target = Literal[
    Projection,
    "in_proj_qkvz",  # of a linear mixer, by the names of their modules
    "in_proj_ba",
    "in_proj_qkv",
    "in_proj_z",
    "in_proj_b",
    "in_proj_a",
    "out_proj",
    "expert_up",
    "expert_down",
    "embedding",
    "head",
]
# How a matrix is rebuilt in 16 bits: by a kernel for each product, or by torch's operations.
Dequantisation = Literal["kernel", "operations"]
MODES: tuple[Mode, ...] = get_args(Mode)
TARGETS: tuple[Target, ...] = get_args(Projection)
WHOLE: tuple[Target, ...] = ("embedding", "head")
# Words for several: of those a model lacks, the others are meant.
TARGET_GROUPS: dict[str, tuple[Target, ...]] = {
    "all-linear": TARGETS,
    "attention": TARGETS[:4],
    "mlp": TARGETS[4:7],
    "mixer": get_args(Target)[8:15],
    "experts": ("expert_up", "expert_down"),
}
ALL_LINEAR = "all-linear"
# What can be a module with an adapter of its own.
MODULES = (*TARGETS, *TARGET_GROUPS["mixer"])
# Names of modules by what they hold, besides ``q_proj`` and its like: transformers' model code,
# then Megatron-Core's.
_NAMES: dict[tuple[Target, ...], str] = {
    ("q", "k", "v"): "query_key_value c_attn Wqkv qkv_proj W_pack linear_qkv",
    ("o",): "dense attn.c_proj linear_proj",
    ("o", "down"): "c_proj",
    ("gate", "up"): "gate_up_proj linear_fc1",
    ("gate",): "w1",
    ("up",): "dense_h_to_4h fc1 fc_in c_fc w3",
    ("down",): "dense_4h_to_h fc2 fc_out mlp.c_proj w2 linear_fc2",
    ("expert_up",): "experts.gate_up_proj",
    ("expert_down",): "experts.down_proj",
    ("embedding",): "embed_tokens wte word_embeddings embed_in",
    ("head",): "lm_head embed_out",
}
PROJECTIONS = {name: targets for targets, names in _NAMES.items() for name in names.split()}
# Assumed where nobody says; published runs use 8 to 64, PEFT's own default is 8.
USUAL_RANK = 16
MAX_RANK = 65_536
# Per weight in NF4: 4 bits, an 8-bit scale per block of 64 weights, and, under double quantisation,
# an fp32 one per block of 256 scales (arXiv 2305.14314, section 3).
QUANTISED_BYTES = 0.5 + (1.0 + 4.0 / 256) / 64
# Per frozen weight in 16 bits.
FROZEN_BYTES = 2.0


@dataclass(frozen=True, kw_only=True)
class Training:
    """Weights that are trained, and weights that stay frozen."""

    mode: Mode = "full"
    rank: int = 0  # rank of the adapters; 0 where all weights are trained
    targets: tuple[Target, ...] = ()  # projections with adapters, in the order of TARGETS
    num_adapters: int = 1  # beside each of them, of which every token takes one

    @property
    def is_frozen(self) -> bool:
        """The model's own weights are not trained."""
        return self.mode != "full"

    @property
    def frozen_linear_bytes(self) -> float:
        """Bytes per weight of a frozen linear layer."""
        return QUANTISED_BYTES if self.mode == "qlora" else FROZEN_BYTES

    @property
    def words(self) -> str:
        """Text in one line: ``qlora of rank 16 on q,k,v,o``."""
        if not self.is_frozen:
            return "full"
        return f"{self.mode} of rank {self.rank} on {target_words(self.targets)}"

    @property
    def suffix(self) -> str:
        """:attr:`words` to stand behind a precision; empty where all weights are trained."""
        return f", {self.words}" if self.is_frozen else ""

    @property
    def inputs(self) -> dict[str, object]:
        """Training by the keys of files; none where all weights are trained."""
        if not self.is_frozen:
            return {}
        return {"train": self.mode, "lora_rank": self.rank, "lora_targets": list(self.targets)}

    @property
    def options(self) -> tuple[str, ...]:
        """The options of a command that say it; none where all weights are trained."""
        if not self.is_frozen:
            return ()
        words = ("--train", self.mode, "--lora-rank", str(self.rank))
        return (*words, "--lora-targets", target_words(self.targets))

    @property
    def without_mixers(self) -> "Training":
        """Training of a model without mixers: out_proj is attention's (OPT, GPT-J, MPT)."""
        named = {"o" if each == "out_proj" else each for each in self.targets}
        return replace(self, targets=in_order(named))


FULL = Training()


def in_order(chosen: Container[Target]) -> tuple[Target, ...]:
    """The chosen targets, in the order of Target."""
    return tuple(target for target in get_args(Target) if target in chosen)


def target_words(targets: tuple[Target, ...]) -> str:
    """The words for groups of targets where they fit, and the names of the others."""
    names, rest = list[str](), {*targets}
    for word, group in TARGET_GROUPS.items():
        if rest.issuperset(group):
            names.append(word)
            rest.difference_update(group)
    return ",".join((*names, *in_order(rest)))


def targets_named(word: str) -> tuple[Target, ...]:
    """What a group's word, a target or a module's name stands for; none where it is not known.

    Names of modules are known by their ends; one of some layers only (``layers.7.q_proj``) is not.
    """
    parts = word.strip().split(".")
    known = TARGET_GROUPS | {each: (each,) for each in get_args(Target)} | PROJECTIONS
    known |= {f"{target}_proj": (target,) for target in TARGETS}
    ends = (".".join(parts[at:]) for at in range(len(parts)))
    found = next((known[end] for end in ends if end in known), ())
    return () if any(map(str.isdecimal, parts)) else found


def read_targets(text: str) -> tuple[Target, ...]:
    """Targets from ``all-linear``, ``attention``, ``q,v,mlp`` or names of modules: ``c_attn``.

    Raises ValueError where a word is unknown.
    """
    chosen: set[Target] = set()
    for word in text.split(","):
        found = targets_named(word)
        if not found:
            allowed = ", ".join((*TARGET_GROUPS, *get_args(Target)))
            raise ValueError(f"unknown target {word.strip()!r}; allowed are {allowed}")
        chosen.update(found)
    return in_order(chosen)


TensorKind = Literal["matrix", "vector", "embedding", "head"]


@dataclass(frozen=True, kw_only=True)
class TensorStates:
    """Optimizer states of one kind of tensor."""

    element_bytes: float  # states as large as the tensor, per element
    factor_bytes: float = 0.0  # per row and per column: second moments kept as means
    block_bytes: float = 0.0  # scales per block of quantised states, all states together


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """One optimizer as one framework (or none in particular) runs it."""

    name: str
    matrix: TensorStates  # weights of linear layers, experts included
    vector: TensorStates  # norms and biases
    embedding: TensorStates
    head: TensorStates  # the vocabulary projection where it is not tied to the embedding
    # HBM bytes per matrix element in a step: fp32 gradient, fp32 master, states; 16-bit weights and
    # the 8-bit blocks' scales excluded.
    step_traffic_bytes: float
    block_elements: int = 256  # elements that share a scale, where states are quantised
    min_quantised_elements: int = 0  # smaller tensors keep small_element_bytes
    small_element_bytes: float = 0.0
    foreach_fraction: float = 0.0  # of its states, made anew where torch steps all tensors at once
    master_bytes: float | None = None  # where the setting shrinks them; None: the usual ones
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)  # ZeRO stages it runs under
    offload: Literal["part", "whole", "no"] = "part"  # of its states, where the framework offloads
    hybrid_sharding: bool = True  # inside groups that are replicated, where the framework does so
    setting: str = ""  # setting that selects it in the framework

    def states(self, kind: TensorKind) -> TensorStates:
        """Return what is kept of a kind of tensor."""
        kept: TensorStates = getattr(self, kind)
        return kept


def state_bytes(optimizer: OptimizerSpec, kind: TensorKind, rows: int, columns: int = 1) -> float:
    """Bytes of optimizer states of one tensor; a vector has one column.

    ``n e + (r + c) f + ceil(n / block) b`` with ``n = r c``; a quantised tensor below
    ``min_quantised_elements`` takes ``n · small_element_bytes``.
    Source: arXiv 1804.04235 section 3 (row and column means), arXiv 2110.02861 section 2
    (block-wise scales); bytes as in ``optimizers.yaml``. Excludes step counters, the one
    quantisation map all tensors share (1 KiB a state), and master weights.
    """
    kept = optimizer.states(kind)
    num_elements = rows * columns
    whole = num_elements * kept.element_bytes + (rows + columns) * kept.factor_bytes
    if kept.block_bytes == 0.0:
        return whole
    if num_elements < optimizer.min_quantised_elements:
        return num_elements * optimizer.small_element_bytes
    return whole + -(-num_elements // optimizer.block_elements) * kept.block_bytes
