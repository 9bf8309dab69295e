"""Decoders with rmsnorms, a gated MLP and rotary positions: Llama and its like, Qwen, Gemma."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from planner.catalog.hf.config import (
    Activation,
    Finding,
    HfConfig,
    Layers,
    Only,
    Raw,
    Width,
    Words,
    activation,
)
from planner.catalog.hf.windows import FULL, SLIDING, every_nth_full, full_attention_step

_TANH: Mapping[str, Activation] = {"gelu": "gelu_pytorch_tanh"}
CAUSAL_ONLY = Only((False, None), "attention to later tokens is not modelled")


class Modern(HfConfig):
    """What the families of this kind share; a window is for the layers that ``kinds`` names."""

    READS_LAYER_TYPES: ClassVar[bool] = False
    """Whether the class follows ``layer_types`` or goes by its own rule only."""

    vocab_size: Width = 32000
    hidden_size: Width = 4096
    intermediate_size: Width = 11008
    num_hidden_layers: Layers = 32
    num_attention_heads: Width = 32
    num_key_value_heads: Width | None = None
    head_dim: Width | None = None
    hidden_act: Activation = "silu"
    max_position_embeddings: Width = 2048
    tie_word_embeddings: bool = False
    layer_types: Words | None = None

    def window(self) -> int | None:
        """Tokens a windowed layer sees."""
        return None

    def kinds(self) -> tuple[str, ...]:
        """Kind of attention per layer where the file does not list them."""
        return (SLIDING if self.window() else FULL,) * self.num_hidden_layers

    def findings(self) -> Iterator[Finding]:
        """Yield a list of layer types that cannot be, or cannot be expressed."""
        given = self.layer_types
        kinds = self.kinds() if given is None else given
        allowed = f"all {FULL}, all {SLIDING}, or every n-th {FULL}"
        if len(kinds) != self.num_hidden_layers:
            what = "needs one entry per layer"
            yield Finding("layer_types", what, f"{len(kinds)} entries", self.num_hidden_layers)
        elif unknown := sorted(set(kinds) - {FULL, SLIDING}):
            what = "kinds of layers that are not modelled"
            yield Finding("layer_types", what, ", ".join(map(repr, unknown)), allowed)
        elif not self.READS_LAYER_TYPES and kinds != self.kinds():
            what = f"{self.CLASS} does not read it and builds other layers"
            yield Finding("layer_types", what, _shown(kinds), _shown(self.kinds()))
        elif self.window() and full_attention_step(kinds) is None:
            key = "max_window_layers" if given is None else "layer_types"
            yield Finding(key, "a pattern that is not modelled", _shown(kinds), allowed)
        elif SLIDING in kinds and not self.window():
            yield Finding("layer_types", f"{SLIDING} without a window", _shown(kinds), FULL)

    def raw(self) -> Raw:
        """A plain block without biases, with the window of ``kinds``."""
        kinds = self.layer_types or self.kinds()
        step = full_attention_step(kinds) or 0
        window = self.window() if SLIDING in kinds else None
        return {
            "num_layers": self.num_hidden_layers,
            "hidden_size": self.hidden_size,
            "num_heads": self.num_attention_heads,
            "num_kv_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "ffn_size": self.intermediate_size,
            "gated_mlp": True,
            "activation": activation(self.hidden_act),
            "vocab_size": self.vocab_size,
            "max_seq_len": self.max_position_embeddings,
            "tied_embeddings": self.tie_word_embeddings,
            "norm": "rmsnorm",
            "sliding_window": window or 0,
            "full_attention_step": step if window else 0,
        }


def _shown(kinds: tuple[str, ...]) -> str:
    """Runs of equal layers: ``5 sliding_attention, 1 full_attention, ...``."""
    runs: list[tuple[int, str]] = []
    for kind in kinds:
        count = runs.pop()[0] if runs and runs[-1][1] == kind else 0
        runs.append((count + 1, kind))
    text = ", ".join(f"{count} {kind}" for count, kind in runs[:4])
    return f"{text}, ..." if len(runs) > 4 else text


def with_attention_biases(raw: Raw, *, biased: bool, mlp: bool = False) -> Raw:
    """Return the keys with biases in all four projections of attention, or in none."""
    return raw | {"biases": {"qkv": biased, "attention_output": biased, "mlp": mlp}}


class Llama(Modern):
    """transformers/models/llama/configuration_llama.py."""

    CLASS: ClassVar[str] = "LlamaForCausalLM"

    attention_bias: bool = False
    mlp_bias: bool = False

    def raw(self) -> Raw:
        """Biases by their keys."""
        return with_attention_biases(super().raw(), biased=self.attention_bias, mlp=self.mlp_bias)


class Granite(Llama):
    """transformers/models/granite/configuration_granite.py; its multipliers change no shape."""

    CLASS: ClassVar[str] = "GraniteForCausalLM"


class SmolLm3(Llama):
    """transformers/models/smollm3/configuration_smollm3.py."""

    CLASS: ClassVar[str] = "SmolLM3ForCausalLM"
    ONLY: ClassVar[Mapping[str, Only]] = {
        "use_sliding_window": Only((False, None), "windows beside layers without are not modelled")
    }

    vocab_size: Width = 128256
    hidden_size: Width = 2048
    num_hidden_layers: Layers = 36
    num_attention_heads: Width = 16
    num_key_value_heads: Width | None = 4
    max_position_embeddings: Width = 32768
    tie_word_embeddings: bool = True


class Olmo2(Modern):
    """transformers/models/olmo2/configuration_olmo2.py."""

    CLASS: ClassVar[str] = "Olmo2ForCausalLM"

    vocab_size: Width = 50304
    attention_bias: bool = False

    def raw(self) -> Raw:
        """Norms behind both halves of a layer, and of all queries and all keys."""
        raw = with_attention_biases(super().raw(), biased=self.attention_bias)
        return raw | {"qk_norm": "full"}


class Olmo3(Olmo2):
    """transformers/models/olmo3/configuration_olmo3.py."""

    CLASS: ClassVar[str] = "Olmo3ForCausalLM"
    READS_LAYER_TYPES: ClassVar[bool] = True

    sliding_window: Width | None = 4096

    def window(self) -> int | None:
        """Of three layers in four."""
        return self.sliding_window

    def kinds(self) -> tuple[str, ...]:
        """Every fourth layer sees the whole sequence."""
        return every_nth_full(self.num_hidden_layers, 4)


class Mistral(Modern):
    """transformers/models/mistral/configuration_mistral.py."""

    CLASS: ClassVar[str] = "MistralForCausalLM"

    intermediate_size: Width = 14336
    num_key_value_heads: Width | None = 8
    max_position_embeddings: Width = 131072
    sliding_window: Width | None = 4096

    def window(self) -> int | None:
        """Of every layer."""
        return self.sliding_window


class Ministral3(Mistral):
    """transformers/models/ministral3/configuration_ministral3.py."""

    CLASS: ClassVar[str] = "Ministral3ForCausalLM"

    vocab_size: Width = 131072
    num_hidden_layers: Layers = 34
    num_key_value_heads: Width = 8
    head_dim: Width = 128
    max_position_embeddings: Width = 262144
    sliding_window: Width | None = None


class Glm(Modern):
    """transformers/models/glm/configuration_glm.py."""

    CLASS: ClassVar[str] = "GlmForCausalLM"

    vocab_size: Width = 151552
    intermediate_size: Width = 13696
    num_hidden_layers: Layers = 40
    num_key_value_heads: Width | None = 2
    head_dim: Width | None = 128
    max_position_embeddings: Width = 131072
    attention_bias: bool = True

    def raw(self) -> Raw:
        """Biases of queries, keys and values only."""
        return super().raw() | {"biases": {"qkv": self.attention_bias}}


class Glm4(Glm):
    """transformers/models/glm4/configuration_glm4.py."""

    CLASS: ClassVar[str] = "Glm4ForCausalLM"

    def raw(self) -> Raw:
        """Norms before and behind both halves of a layer."""
        return super().raw() | {"norms_per_layer": 4}


class Phi3(Modern):
    """transformers/models/phi3/configuration_phi3.py."""

    CLASS: ClassVar[str] = "Phi3ForCausalLM"

    vocab_size: Width = 32064
    hidden_size: Width = 3072
    intermediate_size: Width = 8192
    max_position_embeddings: Width = 4096
    sliding_window: Width | None = None

    def window(self) -> int | None:
        """Of every layer."""
        return self.sliding_window


class QwenWindow(Modern):
    """The window of the Qwen families, which ``use_sliding_window`` switches on."""

    READS_LAYER_TYPES: ClassVar[bool] = True

    vocab_size: Width = 151936
    max_position_embeddings: Width = 32768
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28

    def window(self) -> int | None:
        """Tokens, once the window is switched on."""
        on = self.use_sliding_window and self.sliding_window and self.sliding_window > 0
        return self.sliding_window if on else None

    def kinds(self) -> tuple[str, ...]:
        """Layers from max_window_layers on have the window."""
        first = self.max_window_layers if self.window() else self.num_hidden_layers
        return tuple(SLIDING if index >= first else FULL for index in range(self.num_hidden_layers))


class Qwen2(QwenWindow):
    """transformers/models/qwen2/configuration_qwen2.py."""

    CLASS: ClassVar[str] = "Qwen2ForCausalLM"

    intermediate_size: Width = 22016
    num_key_value_heads: Width | None = 32

    def raw(self) -> Raw:
        """Biases of queries, keys and values, which no key says."""
        return super().raw() | {"biases": {"qkv": True}}


class Qwen3(QwenWindow):
    """transformers/models/qwen3/configuration_qwen3.py."""

    CLASS: ClassVar[str] = "Qwen3ForCausalLM"

    intermediate_size: Width = 22016
    num_key_value_heads: Width | None = 32
    head_dim: Width | None = 128
    attention_bias: bool = False

    def raw(self) -> Raw:
        """Norms of queries and keys per head."""
        raw = with_attention_biases(super().raw(), biased=self.attention_bias)
        return raw | {"qk_norm": "head"}


class Gemma(Modern):
    """transformers/models/gemma/configuration_gemma.py."""

    CLASS: ClassVar[str] = "GemmaForCausalLM"
    ONLY: ClassVar[Mapping[str, Only]] = {"use_bidirectional_attention": CAUSAL_ONLY}

    vocab_size: Width = 256000
    hidden_size: Width = 3072
    intermediate_size: Width = 24576
    num_hidden_layers: Layers = 28
    num_attention_heads: Width = 16
    num_key_value_heads: Width | None = 16
    head_dim: Width | None = 256
    hidden_act: Activation = "gelu_pytorch_tanh"
    max_position_embeddings: Width = 8192
    tie_word_embeddings: bool = True
    attention_bias: bool = False

    def raw(self) -> Raw:
        """The old files' ``gelu`` means the tanh form."""
        raw = with_attention_biases(super().raw(), biased=self.attention_bias)
        return raw | {"activation": activation(_TANH.get(self.hidden_act, self.hidden_act))}


class Gemma2(Gemma):
    """transformers/models/gemma2/configuration_gemma2.py."""

    CLASS: ClassVar[str] = "Gemma2ForCausalLM"
    READS_LAYER_TYPES: ClassVar[bool] = True

    hidden_size: Width = 2304
    intermediate_size: Width = 9216
    num_hidden_layers: Layers = 26
    num_attention_heads: Width = 8
    num_key_value_heads: Width | None = 4
    hidden_activation: Activation = "gelu_pytorch_tanh"
    sliding_window: Width | None = 4096

    def window(self) -> int | None:
        """Of every second layer."""
        return self.sliding_window

    def kinds(self) -> tuple[str, ...]:
        """Every second layer sees the whole sequence."""
        return every_nth_full(self.num_hidden_layers, 2)

    def raw(self) -> Raw:
        """Norms before and behind both halves of a layer."""
        return super().raw() | {
            "activation": activation(self.hidden_activation),
            "norms_per_layer": 4,
        }


class Gemma3Text(Gemma2):
    """transformers/models/gemma3/configuration_gemma3.py (Gemma3TextConfig)."""

    CLASS: ClassVar[str] = "Gemma3ForCausalLM"

    vocab_size: Width = 262208
    max_position_embeddings: Width = 131072
    sliding_window_pattern: Layers = 6

    def kinds(self) -> tuple[str, ...]:
        """Every sixth layer sees the whole sequence, or as ``sliding_window_pattern`` says."""
        return every_nth_full(self.num_hidden_layers, self.sliding_window_pattern)

    def raw(self) -> Raw:
        """Norms of queries and keys per head."""
        return super().raw() | {"qk_norm": "head"}
