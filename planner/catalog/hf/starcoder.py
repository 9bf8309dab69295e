"""Decoders with layernorms and few key/value heads: GPT-BigCode (StarCoder) and StarCoder2."""

from typing import ClassVar

from planner.catalog.hf.classic import Gpt2
from planner.catalog.hf.config import Activation, Layers, Raw, Width
from planner.catalog.hf.modern import Modern, with_attention_biases


class GptBigCode(Gpt2):
    """transformers/models/gpt_bigcode/configuration_gpt_bigcode.py."""

    CLASS: ClassVar[str] = "GPTBigCodeForCausalLM"

    activation_function: Activation = "gelu_pytorch_tanh"
    multi_query: bool = True

    def raw(self) -> Raw:
        """One key/value head, or as many as queries have."""
        return super().raw() | {"num_kv_heads": 1 if self.multi_query else self.n_head}


class Starcoder2(Modern):
    """transformers/models/starcoder2/configuration_starcoder2.py."""

    CLASS: ClassVar[str] = "Starcoder2ForCausalLM"

    vocab_size: Width = 49152
    hidden_size: Width = 3072
    intermediate_size: Width = 12288
    num_hidden_layers: Layers = 30
    num_attention_heads: Width = 24
    num_key_value_heads: Width = 2
    hidden_act: Activation = "gelu_pytorch_tanh"
    max_position_embeddings: Width = 4096
    sliding_window: Width | None = None
    use_bias: bool = True
    tie_word_embeddings: bool = True

    def window(self) -> int | None:
        """Of every layer."""
        return self.sliding_window

    def raw(self) -> Raw:
        """Two matrices in the MLP, biases in all products but the head."""
        raw = with_attention_biases(super().raw(), biased=self.use_bias, mlp=self.use_bias)
        return raw | {"gated_mlp": False, "norm": "layernorm"}
