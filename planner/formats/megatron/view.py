"""Queries of rules on a file: degrees, options, environment, one function each."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from planner.formats.megatron.model import SIZES
from planner.formats.megatron.options import (
    BATCH,
    ETP,
    PP,
    STEPS,
    TP,
    batches_in,
    hybrid_pattern,
    load_options,
    names,
    number,
    whole,
    word,
)
from planner.formats.megatron.states import CONNECTIONS, keeps_order, weight_shards
from planner.formats.settings import ConfigView, Settings, given

ARGUMENTS = "megatron/training/arguments.py"
CONFIG = "megatron/core/transformer/transformer_config.py"
# A batch between the option that says it and its micro-batch.
Batch: TypeAlias = tuple[str, int, int]


class Size:
    """A number from 1 on as the file states it, else as a decision; without both its default."""

    def __init__(self, option: str, decision: str = "", default: int = 1) -> None:
        self.option, self.decision, self.default = option, decision, default

    def __get__(self, file: "MegatronView", _: type) -> int:
        """The number; an option that is asked for is none that the file may leave open."""
        value, default = file.world.decisions.get(self.decision), self.default
        if type(value) is int and value >= 1:
            default = value
            if self.decision in SIZES:
                return whole(file.settings, self.option, default)
        return whole(file.asked(self.option), self.option, default)


@dataclass(frozen=True, kw_only=True)
class MegatronView(ConfigView):
    """A file's options and the world they run in; of sizes 0 is none, or not known."""

    tp = Size(TP, "tp")
    pp = Size(PP, "pp")
    cp = Size("--context-parallel-size", "cp")
    ep = Size("--expert-model-parallel-size", "ep")
    instances = Size("--num-distributed-optimizer-instances")
    micro_batch = Size("--micro-batch-size", "micro_batch", 0)
    global_batch = Size("--global-batch-size", "global_batch", 0)
    seq_len = Size("--seq-length", "seq_len", 0)
    num_layers = Size("--num-layers", "model.num_layers", 0)
    num_experts = Size("--num-experts", "model.num_experts", 0)
    num_heads = Size("--num-attention-heads", "model.num_heads", 0)
    hidden_size = Size("--hidden-size", "model.hidden_size", 0)
    ffn_size = Size("--ffn-hidden-size", "model.ffn_size", 0)
    query_groups = Size("--num-query-groups")

    def setting(self, name: str) -> Any:  # noqa: ANN401 - whatever the file holds
        """The value of an option."""
        option = f"--{name.removeprefix('has_').replace('_', '-')}"
        known = load_options()[option]
        if name.startswith("has_"):
            return self.has(option)
        if not known.takes_values:
            return self.flag(option)
        if known.kind == "float":
            return given(self.asked(option), option)
        ask = self.words if known.nargs else self.number if known.kind == "int" else self.word
        return ask(option)

    def asked(self, option: str) -> Settings:
        """The settings; what rests on an option that the file leaves open is not said."""
        found = self.settings.get(option)
        if found is not None and found.value is None:
            self.unresolved.add(option)
        return self.settings

    def has(self, option: str) -> bool:
        """Return True if an option is given with a known value."""
        return given(self.settings, option) is not None

    def having(self, *options: str) -> list[str]:
        """Return those of some options that are given with a known value."""
        return [option for option in options if self.has(option)]

    def number(self, option: str) -> int | None:
        """A whole number, or None."""
        return number(self.asked(option), option)

    def word(self, key: str, default: str = "") -> str:
        """A word, or Megatron's default."""
        return word(self.asked(key), key) or default

    def words(self, option: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Several words, or the default."""
        return names(self.asked(option), option, default)

    @property
    def batches(self) -> list[Batch]:
        """The batch, or all those of a schedule."""
        try:
            found = [(STEPS, batch) for _, batch in batches_in(self.asked(STEPS))]
        except ValueError:
            return []
        return [(*each, self.micro_batch) for each in found or [(BATCH, self.global_batch)]]

    @property
    def evaluated(self) -> list[Batch]:
        """The batch of evaluations, where it is another."""
        key, micro = "--eval-global-batch-size", "--eval-micro-batch-size"
        size = self.number(key) or self.global_batch, self.number(micro) or self.micro_batch
        return [(each, *size) for each in self.having(key, micro)[:1]]

    @property
    def knows_model(self) -> bool:
        """True if the file or its model says whether there are experts."""
        return self.has("--num-layers") or "model.num_experts" in self.world.decisions

    @property
    def builds_gpt(self) -> bool:
        """True if the training script builds GPT models alone."""
        return str(self["script"]).endswith("pretrain_gpt.py")

    @property
    def num_segments(self) -> int:
        """Parts that a pattern of layers has for the pipeline; 1 without it."""
        return len(hybrid_pattern(self.settings)[0])

    @property
    def strange_letters(self) -> str:
        """Letters of a pattern that stand for no layer."""
        segments, further = hybrid_pattern(self.settings)
        letters = {*"".join([*segments, *further])}
        return "".join(sorted(letters - {*"*D+MGE-"})[:20])

    @property
    def etp(self) -> int:
        """Tensor parallelism of experts."""
        return whole(self.asked(ETP), ETP, self.tp)

    @property
    def vpp(self) -> int:
        """Chunks per stage."""
        value = self.world.decisions.get("vpp", 1)
        return value if type(value) is int else 1

    @property
    def model_ranks(self) -> int:
        """Processes of a replica: tp x pp x cp."""
        return self.tp * self.pp * self.cp

    @property
    def dp(self) -> int:
        """Data parallelism; 0: not known or not whole."""
        return 0 if self.num_gpus % self.model_ranks else self.num_gpus // self.model_ranks

    @property
    def cuts_weights(self) -> bool:
        """Weights are cut over further ranks."""
        return any(weight_shards(self.settings))

    @property
    def num_kv_heads(self) -> int:
        """Key and value heads."""
        if self.flag("--multi-latent-attention"):
            return self.num_heads
        if self.flag("--group-query-attention"):
            return self.query_groups
        value = self.world.decisions.get("model.num_kv_heads", self.num_heads)
        return value if type(value) is int else 0

    @property
    def is_script(self) -> bool:
        """True if the file sets the environment too."""
        return "script" in self.settings or bool(self.world.environment)

    def variable(self, name: str) -> str | None:
        """A variable of the environment; None: not set."""
        found = given(self.settings, name)
        if found is None:
            return self.world.environment.get(name)
        return str(found)

    @property
    def connections(self) -> str | None:
        """Device queues of the environment; None: not set."""
        return self.variable(CONNECTIONS)

    @property
    def needs_one_queue(self) -> bool:
        """True if kernels keep their order by one device queue only."""
        free = ("--use-megatron-fsdp", "--use-torch-fsdp2", "--overlap-moe-expert-parallel-comm")
        is_free = keeps_order(self.world.compute_capability) or any(map(self.flag, free))
        return self.is_script and not is_free and self.tp * self.cp > 1
