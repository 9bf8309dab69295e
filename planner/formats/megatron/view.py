"""What rules ask about a file: degrees, options, environment, each with one question."""

from collections.abc import Mapping
from dataclasses import dataclass

from planner.formats.format import Value
from planner.formats.megatron.decisions import SIZES
from planner.formats.megatron.options import is_on, names, number, whole
from planner.formats.megatron.runtime import keeps_order
from planner.formats.rules import ConfigView
from planner.formats.settings import given, word

ETP = "--expert-tensor-parallel-size"


@dataclass(frozen=True, kw_only=True)
class MegatronView(ConfigView):
    """A file's options and the world they run in."""

    def _asked(self, option: str) -> Mapping[str, Value]:
        found = self.settings.get(option)
        if found is not None and found.value is None:
            self.unresolved.add(option)
        return self.settings

    def on(self, option: str) -> bool:
        """Whether a flag is given."""
        return is_on(self.settings, option)

    def has(self, option: str) -> bool:
        """Whether an option is given with a known value."""
        return given(self.settings, option) is not None

    def number(self, option: str) -> int | None:
        """A whole number, or None."""
        return number(self._asked(option), option)

    def word(self, key: str, default: str = "") -> str:
        """A word, or the default."""
        return word(self._asked(key), key, default)

    def words(self, option: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Several words, or the default."""
        return names(self._asked(option), option, default)

    def size(self, option: str, decision: str = "", default: int = 1) -> int:
        """A number from 1 on: the file's own, else what is known of the decision."""
        value = self.world.decisions.get(decision)
        if type(value) is int and value >= 1:
            default = value
            if decision in SIZES:
                return whole(self.settings, option, default)
        return whole(self._asked(option), option, default)

    @property
    def tp(self) -> int:
        """Tensor parallelism."""
        return self.size("--tensor-model-parallel-size", "tp")

    @property
    def pp(self) -> int:
        """Pipeline stages."""
        return self.size("--pipeline-model-parallel-size", "pp")

    @property
    def cp(self) -> int:
        """Context parallelism."""
        return self.size("--context-parallel-size", "cp")

    @property
    def ep(self) -> int:
        """Expert parallelism."""
        return self.size("--expert-model-parallel-size", "ep")

    @property
    def etp(self) -> int:
        """Tensor parallelism of experts."""
        return whole(self._asked(ETP), ETP, self.tp)

    @property
    def vpp(self) -> int:
        """Chunks per stage."""
        value = self.world.decisions.get("vpp", 1)
        return value if type(value) is int else 1

    @property
    def num_gpus(self) -> int:
        """Processes in all; 0: not known."""
        return self.world.num_gpus

    @property
    def dp(self) -> int:
        """Data parallelism; 0: not known or not whole."""
        inner = self.tp * self.pp * self.cp
        return 0 if self.num_gpus % inner else self.num_gpus // inner

    @property
    def expert_dp(self) -> int:
        """Data parallelism of experts; 0: not known or not whole."""
        inner = self.etp * self.ep * self.pp
        return 0 if self.num_gpus % inner else self.num_gpus // inner

    @property
    def num_layers(self) -> int:
        """Transformer layers; 0: not known."""
        return self.size("--num-layers", "model.num_layers", 0)

    @property
    def num_experts(self) -> int:
        """Experts; 0: none."""
        return self.size("--num-experts", "model.num_experts", 0)

    @property
    def knows_model(self) -> bool:
        """Whether anybody has said which model it is; without, it may have experts."""
        return self.has("--num-layers") or "model.num_experts" in self.world.decisions

    @property
    def num_heads(self) -> int:
        """Query heads; 0: not known."""
        return self.size("--num-attention-heads", "model.num_heads", 0)

    @property
    def num_kv_heads(self) -> int:
        """Key and value heads; 0: not known."""
        if self.on("--multi-latent-attention"):
            return self.num_heads
        if self.on("--group-query-attention"):
            return self.size("--num-query-groups")
        value = self.world.decisions.get("model.num_kv_heads", self.num_heads)
        return value if type(value) is int else 0

    @property
    def is_script(self) -> bool:
        """Whether the file sets the environment too."""
        return "script" in self.settings or bool(self.world.environment)

    def variable(self, name: str) -> str | None:
        """A variable of the environment; None: not set."""
        found = given(self.settings, name)
        return str(found) if found is not None else self.world.environment.get(name)

    @property
    def keeps_order(self) -> bool:
        """Whether the accelerator runs kernels in order without CUDA_DEVICE_MAX_CONNECTIONS."""
        return keeps_order(self.world.compute_capability)
