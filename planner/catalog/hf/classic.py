"""Decoders with layernorms and an ungated MLP: GPT-2, -J, -NeoX, OPT, BLOOM, MPT, Falcon, Phi."""

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
    activation,
    extra,
)

ALL_BIASES = {"qkv": True, "attention_output": True, "mlp": True}
NO_CROSS_ATTENTION = Only((False, None), "cross-attention in every layer is not modelled")
GPT2_WORDS = {
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "hidden_size": "n_embd",
}
GPT2_ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
BLOOM_LENGTH = 2048
"""Tokens BLOOM was trained on; its class has no limit, old files say ``seq_length``."""


class Gpt2(HfConfig):
    """transformers/models/gpt2/configuration_gpt2.py."""

    CLASS: ClassVar[str] = "GPT2LMHeadModel"
    ALIASES: ClassVar[Mapping[str, str]] = GPT2_ALIASES
    ONLY: ClassVar[Mapping[str, Only]] = {"add_cross_attention": NO_CROSS_ATTENTION}
    WORDS: ClassVar[Mapping[str, str]] = GPT2_WORDS

    vocab_size: Width = 50257
    n_positions: Width = 1024
    n_embd: Width = 768
    n_layer: Layers = 12
    n_head: Width = 12
    n_inner: Width | None = None
    activation_function: Activation = "gelu_new"
    tie_word_embeddings: bool = True

    def raw(self) -> Raw:
        """Biases everywhere but in the head, learned positions."""
        return {
            "num_layers": self.n_layer,
            "hidden_size": self.n_embd,
            "num_heads": self.n_head,
            "ffn_size": self.n_inner,
            "activation": activation(self.activation_function),
            "vocab_size": self.vocab_size,
            "max_seq_len": self.n_positions,
            "tied_embeddings": self.tie_word_embeddings,
            "biases": ALL_BIASES,
            "position": "learned",
        }


class GptJ(Gpt2):
    """transformers/models/gptj/configuration_gptj.py."""

    CLASS: ClassVar[str] = "GPTJForCausalLM"
    ONLY: ClassVar[Mapping[str, Only]] = {}

    vocab_size: Width = 50400
    n_positions: Width = 2048
    n_embd: Width = 4096
    n_layer: Layers = 28
    n_head: Width = 16
    tie_word_embeddings: bool = False

    def raw(self) -> Raw:
        """One norm for attention and MLP side by side; biases in the MLP and the head."""
        return super().raw() | {
            "biases": {"mlp": True, "lm_head": True},
            "norms_per_layer": 1,
            "parallel_block": True,
            "position": "rope",
        }


class GptNeoX(HfConfig):
    """transformers/models/gpt_neox/configuration_gpt_neox.py."""

    CLASS: ClassVar[str] = "GPTNeoXForCausalLM"

    vocab_size: Width = 50432
    hidden_size: Width = 6144
    num_hidden_layers: Layers = 44
    num_attention_heads: Width = 64
    intermediate_size: Width = 24576
    hidden_act: Activation = "gelu"
    max_position_embeddings: Width = 2048
    tie_word_embeddings: bool = False
    use_parallel_residual: bool = True
    attention_bias: bool = True

    def raw(self) -> Raw:
        """Two norms a layer, whether attention and MLP stand side by side or not."""
        biased = self.attention_bias
        return {
            "num_layers": self.num_hidden_layers,
            "hidden_size": self.hidden_size,
            "num_heads": self.num_attention_heads,
            "ffn_size": self.intermediate_size,
            "activation": activation(self.hidden_act),
            "vocab_size": self.vocab_size,
            "max_seq_len": self.max_position_embeddings,
            "tied_embeddings": self.tie_word_embeddings,
            "biases": {"qkv": biased, "attention_output": biased, "mlp": True},
            "parallel_block": self.use_parallel_residual,
        }


class Opt(HfConfig):
    """transformers/models/opt/configuration_opt.py."""

    CLASS: ClassVar[str] = "OPTForCausalLM"
    ALIASES: ClassVar[Mapping[str, str]] = {"_remove_final_layer_norm": "remove_final_layer_norm"}
    ONLY: ClassVar[Mapping[str, Only]] = {
        "layer_norm_elementwise_affine": Only((True,), "norms without gains are not modelled")
    }

    vocab_size: Width = 50272
    hidden_size: Width = 768
    num_hidden_layers: Layers = 12
    ffn_dim: Width = 3072
    max_position_embeddings: Width = 2048
    do_layer_norm_before: bool = True
    remove_final_layer_norm: bool = False
    word_embed_proj_dim: Width | None = None
    num_attention_heads: Width = 12
    activation_function: Activation = "relu"
    enable_bias: bool = True
    tie_word_embeddings: bool = True

    def findings(self) -> Iterator[Finding]:
        """Yield an embedding narrower than the layers (OPT-350m)."""
        if self.word_embed_proj_dim not in (None, self.hidden_size):
            what = "an embedding narrower than the layers is not modelled"
            yield Finding("word_embed_proj_dim", what, self.word_embed_proj_dim, self.hidden_size)

    def raw(self) -> Raw:
        """Two spare rows of positions; layers with the norm behind end without another."""
        biased = self.enable_bias
        return {
            "num_layers": self.num_hidden_layers,
            "hidden_size": self.hidden_size,
            "num_heads": self.num_attention_heads,
            "ffn_size": self.ffn_dim,
            "activation": activation(self.activation_function),
            "vocab_size": self.vocab_size,
            "max_seq_len": self.max_position_embeddings,
            "tied_embeddings": self.tie_word_embeddings,
            "biases": {"qkv": biased, "attention_output": biased, "mlp": biased},
            "final_norm": self.do_layer_norm_before and not self.remove_final_layer_norm,
            "position": "learned",
            "num_learned_positions": self.max_position_embeddings + 2,
        }


class Bloom(HfConfig):
    """transformers/models/bloom/configuration_bloom.py."""

    CLASS: ClassVar[str] = "BloomForCausalLM"
    ALIASES: ClassVar[Mapping[str, str]] = {
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "n_embed": "hidden_size",
    }
    WORDS: ClassVar[Mapping[str, str]] = {
        "num_layers": "n_layer",
        "num_heads": "n_head",
        "hidden_size": "hidden_size",
    }

    vocab_size: Width = 250880
    hidden_size: Width = 64
    n_layer: Layers = 2
    n_head: Width = 8
    seq_length: Width | None = None
    tie_word_embeddings: bool = True

    def raw(self) -> Raw:
        """Biases everywhere but in the head, ALiBi, a norm behind the embedding."""
        return {
            "num_layers": self.n_layer,
            "hidden_size": self.hidden_size,
            "num_heads": self.n_head,
            "vocab_size": self.vocab_size,
            "max_seq_len": self.seq_length or BLOOM_LENGTH,
            "tied_embeddings": self.tie_word_embeddings,
            "biases": ALL_BIASES,
            "position": "alibi",
            "embedding_norm": True,
            "extra_params": extra(
                "embedding layer norm", 2 * self.hidden_size, "gain and shift of the embedding"
            ),
        }

    def notes(self) -> Iterator[str]:
        """Yield the sequence length where the file gives none."""
        if self.seq_length is None:
            yield f"max_seq_len {BLOOM_LENGTH}: the config gives no seq_length"


class Mpt(HfConfig):
    """transformers/models/mpt/configuration_mpt.py."""

    CLASS: ClassVar[str] = "MptForCausalLM"
    ALIASES: ClassVar[Mapping[str, str]] = {
        "hidden_size": "d_model",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
    }
    ONLY: ClassVar[Mapping[str, Only]] = {
        "expansion_ratio": Only((4,), "MptForCausalLM has MLPs of four times the width"),
        "no_bias": Only((True,), "MptForCausalLM has no biases"),
    }
    WORDS: ClassVar[Mapping[str, str]] = {
        "num_layers": "n_layers",
        "num_heads": "n_heads",
        "hidden_size": "d_model",
    }

    vocab_size: Width = 50368
    d_model: Width = 2048
    n_layers: Layers = 24
    n_heads: Width = 16
    max_seq_len: Width = 2048
    tie_word_embeddings: bool = True

    def raw(self) -> Raw:
        """ALiBi and no biases, not even in norms."""
        return {
            "num_layers": self.n_layers,
            "hidden_size": self.d_model,
            "num_heads": self.n_heads,
            "vocab_size": self.vocab_size,
            "max_seq_len": self.max_seq_len,
            "tied_embeddings": self.tie_word_embeddings,
            "biases": {"norm": False},
            "position": "alibi",
        }


class Falcon(HfConfig):
    """transformers/models/falcon/configuration_falcon.py."""

    CLASS: ClassVar[str] = "FalconForCausalLM"
    ALIASES: ClassVar[Mapping[str, str]] = {"n_embed": "hidden_size"}
    WORDS: ClassVar[Mapping[str, str]] = {
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "num_kv_heads": "num_kv_heads",
        "hidden_size": "hidden_size",
    }

    vocab_size: Width = 65024
    hidden_size: Width = 4544
    num_hidden_layers: Layers = 32
    num_attention_heads: Width = 71
    num_ln_in_parallel_attn: Width | None = None
    num_kv_heads: Width | None = None
    alibi: bool | None = False
    new_decoder_architecture: bool | None = False
    multi_query: bool | None = True
    parallel_attn: bool | None = True
    bias: bool | None = False
    max_position_embeddings: Width = 2048
    ffn_hidden_size: Width | None = None
    activation: Activation = "gelu"
    tie_word_embeddings: bool = True

    def _norms_per_layer(self) -> int:
        """Norms as FalconDecoderLayer builds them."""
        default = 2 if self.new_decoder_architecture else 1
        two = not self.parallel_attn or (self.num_ln_in_parallel_attn or default) == 2
        return 2 if two else 1

    def _kv_heads(self) -> int:
        if self.new_decoder_architecture:
            return self.num_kv_heads or self.num_attention_heads
        return 1 if self.multi_query else self.num_attention_heads

    def raw(self) -> Raw:
        """Grouped queries in the new architecture, one or all key/value heads in the old one."""
        biased = bool(self.bias)
        return {
            "num_layers": self.num_hidden_layers,
            "hidden_size": self.hidden_size,
            "num_heads": self.num_attention_heads,
            "num_kv_heads": self._kv_heads(),
            "ffn_size": self.ffn_hidden_size,
            "activation": activation(self.activation),
            "vocab_size": self.vocab_size,
            "max_seq_len": self.max_position_embeddings,
            "tied_embeddings": self.tie_word_embeddings,
            "biases": {"qkv": biased, "attention_output": biased, "mlp": biased},
            "norms_per_layer": self._norms_per_layer(),
            "parallel_block": bool(self.new_decoder_architecture or self.parallel_attn),
            "position": "alibi" if self.alibi else "rope",
        }


class Phi(HfConfig):
    """transformers/models/phi/configuration_phi.py."""

    CLASS: ClassVar[str] = "PhiForCausalLM"

    vocab_size: Width = 51200
    hidden_size: Width = 2048
    intermediate_size: Width = 8192
    num_hidden_layers: Layers = 24
    num_attention_heads: Width = 32
    num_key_value_heads: Width | None = None
    head_dim: Width | None = None
    hidden_act: Activation = "gelu_new"
    max_position_embeddings: Width = 2048
    tie_word_embeddings: bool = False
    qk_layernorm: bool = False

    def raw(self) -> Raw:
        """One norm for attention and MLP side by side; biases everywhere."""
        head_dim = self.hidden_size // self.num_attention_heads
        shifts = extra("shifts of query and key norms", 2 * head_dim, f"2 x ({head_dim},)")
        return {
            "num_layers": self.num_hidden_layers,
            "hidden_size": self.hidden_size,
            "num_heads": self.num_attention_heads,
            "num_kv_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "ffn_size": self.intermediate_size,
            "activation": activation(self.hidden_act),
            "vocab_size": self.vocab_size,
            "max_seq_len": self.max_position_embeddings,
            "tied_embeddings": self.tie_word_embeddings,
            "biases": ALL_BIASES | {"lm_head": True},
            "norms_per_layer": 1,
            "parallel_block": True,
            "qk_norm": "head" if self.qk_layernorm else "none",
            "extra_params_per_layer": shifts if self.qk_layernorm else (),
        }
