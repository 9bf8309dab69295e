"""Mixtures of experts: Mixtral, Qwen2-MoE, Qwen3-MoE, DeepSeek-V2 and V3, gpt-oss, GLM-4.5."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from planner.catalog.hf.config import (
    Count,
    Finding,
    Indices,
    Layers,
    Only,
    Raw,
    Width,
    extra,
)
from planner.catalog.hf.modern import Modern, QwenWindow, with_attention_biases
from planner.catalog.hf.windows import every_nth_full

MIXED_ONLY = Only((1, None), "dense layers between the mixtures are not modelled")
OFFSETS_NOTE = "the routers' balancing offsets are buffers and not counted"
ROUTED_WORDS = {**Modern.WORDS, "moe.num_experts": "n_routed_experts"}


def leading_and_step(mixed: Sequence[int], num_layers: int) -> tuple[int, int] | None:
    """Return the leading dense layers and the step that give these mixed layers, or None."""
    first = mixed[0]
    step = mixed[1] - first if len(mixed) > 1 else max(1, num_layers - first)
    leading = first - step + 1
    if leading < 0 or list(mixed) != list(range(first, num_layers, step)):
        return None
    return leading, step


class Mixtral(Modern):
    """transformers/models/mixtral/configuration_mixtral.py."""

    CLASS: ClassVar[str] = "MixtralForCausalLM"
    ALIASES: ClassVar[Mapping[str, str]] = {"num_experts": "num_local_experts"}
    WORDS: ClassVar[Mapping[str, str]] = {**Modern.WORDS, "moe.num_experts": "num_local_experts"}

    intermediate_size: Width = 14336
    num_key_value_heads: Width | None = 8
    max_position_embeddings: Width = 131072
    sliding_window: Width | None = None
    num_experts_per_tok: Width = 2
    num_local_experts: Width = 8

    def window(self) -> int | None:
        """Of every layer."""
        return self.sliding_window

    def raw(self) -> Raw:
        """Every layer is a mixture; ``intermediate_size`` is that of an expert."""
        return super().raw() | {
            "moe": {
                "num_experts": self.num_local_experts,
                "top_k": self.num_experts_per_tok,
                "expert_ffn_size": self.intermediate_size,
            }
        }


class GptOss(Mixtral):
    """transformers/models/gpt_oss/configuration_gpt_oss.py."""

    CLASS: ClassVar[str] = "GptOssForCausalLM"
    READS_LAYER_TYPES: ClassVar[bool] = True

    vocab_size: Width = 201088
    hidden_size: Width = 2880
    intermediate_size: Width = 2880
    num_hidden_layers: Layers = 36
    num_attention_heads: Width = 64
    head_dim: Width | None = 64
    sliding_window: Width | None = 128
    num_experts_per_tok: Width = 4
    num_local_experts: Width = 128
    attention_bias: bool = True

    def kinds(self) -> tuple[str, ...]:
        """Every second layer sees the whole sequence."""
        return every_nth_full(self.num_hidden_layers, 2)

    def raw(self) -> Raw:
        """Routers and experts have biases, every query head a sink."""
        raw = with_attention_biases(super().raw(), biased=self.attention_bias, mlp=True)
        sinks = extra("attention sinks", self.num_attention_heads, "one logit per query head")
        return raw | {
            "moe": raw["moe"] | {"router_bias": True, "expert_bias": True},
            "extra_params_per_layer": sinks,
        }


class QwenMixture(QwenWindow):
    """The mixed layers of the Qwen families: every n-th, less those in ``mlp_only_layers``."""

    hidden_size: Width = 2048
    num_hidden_layers: Layers = 24
    decoder_sparse_step: Layers = 1
    mlp_only_layers: Indices | None = None
    num_experts: Count = 1

    def mixed(self) -> list[int]:
        """Indices of the layers that are mixtures."""
        if not self.num_experts:
            return []
        dense, step = set(self.mlp_only_layers or ()), self.decoder_sparse_step
        return [i for i in range(step - 1, self.num_hidden_layers, step) if i not in dense]

    def findings(self) -> Iterator[Finding]:
        """Yield dense layers that do not all come first."""
        yield from super().findings()
        mixed = self.mixed()
        if mixed and leading_and_step(mixed, self.num_hidden_layers) is None:
            what = f"with decoder_sparse_step = {self.decoder_sparse_step} not modelled"
            given = list(self.mlp_only_layers or ())[:20]
            yield Finding("mlp_only_layers", what, given, "[] or the first layers")

    def placed(self, moe: Raw) -> Raw:
        """Return the mixture with the layers it is in; nothing where no layer is mixed."""
        mixed = self.mixed()
        if not mixed:
            return {}
        places = leading_and_step(mixed, self.num_hidden_layers)
        assert places is not None, "findings() was asked first"
        leading, step = places
        return {"moe": moe | {"num_leading_dense_layers": leading, "moe_layer_step": step}}


class Qwen2Moe(QwenMixture):
    """transformers/models/qwen2_moe/configuration_qwen2_moe.py."""

    CLASS: ClassVar[str] = "Qwen2MoeForCausalLM"

    intermediate_size: Width = 5632
    num_attention_heads: Width = 16
    num_key_value_heads: Width | None = 16
    moe_intermediate_size: Width = 1408
    shared_expert_intermediate_size: Width = 5632
    num_experts_per_tok: Width = 4
    num_experts: Count = 60
    qkv_bias: bool = True

    def kinds(self) -> tuple[str, ...]:
        """Every second layer before max_window_layers has the window."""
        alternating = every_nth_full(self.num_hidden_layers, 2 if self.window() else 1)
        full = every_nth_full(self.num_hidden_layers, 1)
        first = max(0, self.max_window_layers)
        return alternating[:first] + full[first:]

    def raw(self) -> Raw:
        """A shared expert behind a gate of its own: (1, hidden_size) per mixed layer."""
        moe = {
            "num_experts": self.num_experts,
            "top_k": self.num_experts_per_tok,
            "expert_ffn_size": self.moe_intermediate_size,
            "num_shared_experts": 1,
            "shared_ffn_size": self.shared_expert_intermediate_size,
        }
        num_mixed = len(self.mixed())
        everywhere = num_mixed == self.num_hidden_layers
        gates = extra(
            "gates of the shared experts",
            self.hidden_size * (1 if everywhere else num_mixed),
            f"(1, {self.hidden_size}) in every mixed layer",
        )
        key = "extra_params_per_layer" if everywhere else "extra_params"
        return super().raw() | self.placed(moe) | {"biases": {"qkv": self.qkv_bias}, key: gates}


class Qwen3Moe(QwenMixture):
    """transformers/models/qwen3_moe/configuration_qwen3_moe.py."""

    CLASS: ClassVar[str] = "Qwen3MoeForCausalLM"
    READS_LAYER_TYPES: ClassVar[bool] = False
    ALIASES: ClassVar[Mapping[str, str]] = {"num_local_experts": "num_experts"}

    intermediate_size: Width = 6144
    num_key_value_heads: Width | None = 4
    attention_bias: bool = False
    moe_intermediate_size: Width = 768
    num_experts_per_tok: Width = 8
    num_experts: Count = 128

    def kinds(self) -> tuple[str, ...]:
        """A window is for every layer."""
        return Modern.kinds(self)

    def raw(self) -> Raw:
        """Norms of queries and keys per head."""
        moe = {
            "num_experts": self.num_experts,
            "top_k": self.num_experts_per_tok,
            "expert_ffn_size": self.moe_intermediate_size,
        }
        raw = with_attention_biases(super().raw(), biased=self.attention_bias)
        return raw | self.placed(moe) | {"qk_norm": "head"}


class SharedExperts(Modern):
    """Dense layers first, then mixtures with shared experts of the routed ones' width."""

    WORDS: ClassVar[Mapping[str, str]] = ROUTED_WORDS

    moe_intermediate_size: Width
    n_routed_experts: Width
    n_shared_experts: Count
    num_experts_per_tok: Width
    first_k_dense_replace: Count
    num_nextn_predict_layers: Count | None = 0

    def raw(self) -> Raw:
        """No mixture where the leading dense layers are all layers."""
        raw = super().raw()
        if self.first_k_dense_replace >= self.num_hidden_layers:
            return raw
        return raw | {
            "moe": {
                "num_experts": self.n_routed_experts,
                "top_k": self.num_experts_per_tok,
                "expert_ffn_size": self.moe_intermediate_size,
                "num_shared_experts": self.n_shared_experts,
                "num_leading_dense_layers": self.first_k_dense_replace,
            }
        }

    def notes(self) -> Iterator[str]:
        """Yield the layers that are left out."""
        if self.num_nextn_predict_layers:
            yield f"multi-token-prediction layers left out: {self.num_nextn_predict_layers}"


class DeepseekV2(SharedExperts):
    """transformers/models/deepseek_v2/configuration_deepseek_v2.py."""

    CLASS: ClassVar[str] = "DeepseekV2ForCausalLM"
    ALIASES: ClassVar[Mapping[str, str]] = {"num_experts": "n_routed_experts"}
    ONLY: ClassVar[Mapping[str, Only]] = {
        "moe_layer_freq": MIXED_ONLY,
        "mlp_bias": Only((False,), "biases in some experts only are not modelled"),
    }

    vocab_size: Width = 102400
    moe_intermediate_size: Width = 1407
    n_routed_experts: Width = 64
    n_shared_experts: Count = 2
    num_experts_per_tok: Width
    first_k_dense_replace: Count = 0
    kv_lora_rank: Width = 512
    q_lora_rank: Count | None = 1536
    qk_nope_head_dim: Width = 128
    qk_rope_head_dim: Width = 64
    v_head_dim: Width = 128
    attention_bias: bool = False

    def raw(self) -> Raw:
        """Latent attention; its biases, which a model file has no key for, are extras."""
        mla: dict[str, Any] = {
            "q_lora_rank": self.q_lora_rank or 0,
            "kv_lora_rank": self.kv_lora_rank,
            "qk_nope_head_dim": self.qk_nope_head_dim,
            "qk_rope_head_dim": self.qk_rope_head_dim,
            "v_head_dim": self.v_head_dim,
        }
        down = mla["q_lora_rank"] + self.kv_lora_rank + self.qk_rope_head_dim
        biases = extra(
            "biases of latent attention",
            (down + self.hidden_size) * self.attention_bias,
            f"({down},) of the down-projections, ({self.hidden_size},) of the output",
        )
        own = {"mla": mla, "head_dim": None, "num_kv_heads": None}
        return super().raw() | own | {"extra_params_per_layer": biases}


class DeepseekV3(DeepseekV2):
    """transformers/models/deepseek_v3/configuration_deepseek_v3.py."""

    CLASS: ClassVar[str] = "DeepseekV3ForCausalLM"
    ALIASES: ClassVar[Mapping[str, str]] = {
        "num_local_experts": "n_routed_experts",
        "num_mtp_layers": "num_nextn_predict_layers",
    }
    ONLY: ClassVar[Mapping[str, Only]] = {"moe_layer_freq": MIXED_ONLY}

    vocab_size: Width = 129280
    hidden_size: Width = 7168
    intermediate_size: Width = 18432
    moe_intermediate_size: Width = 2048
    num_hidden_layers: Layers = 61
    num_attention_heads: Width = 128
    num_key_value_heads: Width | None = 128
    n_shared_experts: Count = 1
    n_routed_experts: Width = 256
    num_experts_per_tok: Width = 8
    first_k_dense_replace: Count = 3
    max_position_embeddings: Width = 4096
    num_nextn_predict_layers: Count | None = 1

    def notes(self) -> Iterator[str]:
        """Yield what is left out."""
        yield from super().notes()
        yield OFFSETS_NOTE


class Glm4Moe(SharedExperts):
    """transformers/models/glm4_moe/configuration_glm4_moe.py."""

    CLASS: ClassVar[str] = "Glm4MoeForCausalLM"
    ALIASES: ClassVar[Mapping[str, str]] = DeepseekV3.ALIASES
    WORDS: ClassVar[Mapping[str, str]] = {
        ours: theirs for ours, theirs in ROUTED_WORDS.items() if ours != "hidden_size"
    }

    vocab_size: Width = 151552
    intermediate_size: Width = 10944
    num_hidden_layers: Layers = 46
    num_attention_heads: Width = 96
    num_key_value_heads: Width | None = 8
    max_position_embeddings: Width = 131072
    attention_bias: bool = False
    moe_intermediate_size: Width = 1408
    num_experts_per_tok: Width = 8
    n_shared_experts: Count = 1
    n_routed_experts: Width = 128
    first_k_dense_replace: Count = 1
    use_qk_norm: bool = False
    num_nextn_predict_layers: Count | None = 1

    def raw(self) -> Raw:
        """Biases of queries, keys and values only; heads are rounded down to whole sizes."""
        return super().raw() | {
            "head_dim": self.head_dim or self.hidden_size // self.num_attention_heads,
            "biases": {"qkv": self.attention_bias},
            "qk_norm": "head" if self.use_qk_norm else "none",
        }

    def notes(self) -> Iterator[str]:
        """Yield what is left out."""
        yield from super().notes()
        yield OFFSETS_NOTE
