"""Models with an encoder: BERT, RoBERTa, T5, ViT."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from planner.catalog.hf.classic import ALL_BIASES, NO_CROSS_ATTENTION
from planner.catalog.hf.config import (
    Activation,
    Count,
    Finding,
    HfConfig,
    Layers,
    Only,
    Raw,
    Width,
    activation,
    extra,
)

Side = Width | Annotated[tuple[Width, Width], Field(strict=False)]
"""Pixels of a square, or height and width."""
T5_LENGTH = 512
"""Tokens T5 was trained on; its class has no limit, old files say ``n_positions``."""


class Bert(HfConfig):
    """transformers/models/bert/configuration_bert.py."""

    CLASS: ClassVar[str] = "BertModel"
    ONLY: ClassVar[Mapping[str, Only]] = {
        "add_cross_attention": NO_CROSS_ATTENTION,
        "is_decoder": Only((False, None), "BERT as a decoder is not modelled"),
        "position_embedding_type": Only(
            ("absolute", None), "tables of relative positions are not modelled"
        ),
    }

    vocab_size: Width = 30522
    hidden_size: Width = 768
    num_hidden_layers: Layers = 12
    num_attention_heads: Width = 12
    intermediate_size: Width = 3072
    hidden_act: Activation = "gelu"
    max_position_embeddings: Width = 512
    type_vocab_size: Count = 2

    def raw(self) -> Raw:
        """Norms behind both halves of a layer, token types and a pooler."""
        hidden = self.hidden_size
        return {
            "architecture": "encoder",
            "num_layers": self.num_hidden_layers,
            "hidden_size": hidden,
            "num_heads": self.num_attention_heads,
            "ffn_size": self.intermediate_size,
            "activation": activation(self.hidden_act),
            "vocab_size": self.vocab_size,
            "max_seq_len": self.max_position_embeddings,
            "tied_embeddings": True,
            "biases": ALL_BIASES,
            "final_norm": False,
            "position": "learned",
            "embedding_norm": True,
            "extra_params": (
                *extra("embedding layer norm", 2 * hidden, "gain and shift"),
                *extra(
                    "token type embedding",
                    self.type_vocab_size * hidden,
                    f"({self.type_vocab_size}, {hidden})",
                ),
                *extra("pooler", hidden * hidden + hidden, f"({hidden}, {hidden}) and a bias"),
            ),
        }

    def notes(self) -> Iterator[str]:
        """Yield which class is counted."""
        yield f"counted with the pooler, without a head ({self.CLASS})"


class Roberta(Bert):
    """transformers/models/roberta/configuration_roberta.py."""

    CLASS: ClassVar[str] = "RobertaModel"

    vocab_size: Width = 50265

    def raw(self) -> Raw:
        """Positions are counted from behind the padding token, which is 1."""
        return super().raw() | {
            "max_seq_len": self.max_position_embeddings - 2,
            "num_learned_positions": self.max_position_embeddings,
        }


class XlmRoberta(Roberta):
    """transformers/models/xlm_roberta/configuration_xlm_roberta.py."""

    CLASS: ClassVar[str] = "XLMRobertaModel"

    vocab_size: Width = 30522


class T5(HfConfig):
    """transformers/models/t5/configuration_t5.py."""

    CLASS: ClassVar[str] = "T5ForConditionalGeneration"
    ALIASES: ClassVar[Mapping[str, str]] = {
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
        "head_dim": "d_kv",
    }
    ONLY: ClassVar[Mapping[str, Only]] = {
        "is_encoder_decoder": Only((True, None), "one stack of T5 alone is not modelled")
    }
    WORDS: ClassVar[Mapping[str, str]] = {"hidden_size": "d_model"}

    vocab_size: Width = 32128
    d_model: Width = 512
    d_kv: Width = 64
    d_ff: Width = 2048
    num_layers: Layers = 6
    num_decoder_layers: Layers | None = None
    num_heads: Width = 8
    relative_attention_num_buckets: Count = 32
    feed_forward_proj: Literal[
        "relu",
        "gelu",
        "gelu_new",
        "silu",
        "gated-relu",
        "gated-gelu",
        "gated-gelu_new",
        "gated-silu",
    ] = "relu"
    n_positions: Width = T5_LENGTH
    tie_word_embeddings: bool | None = None

    def raw(self) -> Raw:
        """One table of relative positions per stack; the head is tied whatever the file says."""
        kind = self.feed_forward_proj.removeprefix("gated-")
        buckets, heads = self.relative_attention_num_buckets, self.num_heads
        return {
            "architecture": "encoder-decoder",
            "num_layers": self.num_layers,
            "num_decoder_layers": self.num_decoder_layers,
            "hidden_size": self.d_model,
            "num_heads": heads,
            "head_dim": self.d_kv,
            "ffn_size": self.d_ff,
            "gated_mlp": self.feed_forward_proj.startswith("gated-"),
            "activation": "gelu-tanh" if kind.startswith("gelu") else kind,
            "vocab_size": self.vocab_size,
            "max_seq_len": self.n_positions,
            "tied_embeddings": True,
            "norm": "rmsnorm",
            "position": "relative",
            "extra_params": extra(
                "relative position biases",
                2 * buckets * heads,
                f"({buckets}, {heads}), one table per stack",
            ),
        }

    def notes(self) -> Iterator[str]:
        """Yield a head of its own, which the class of transformers 5 does not build."""
        if self.tie_word_embeddings is False:
            yield (
                "tie_word_embeddings false: T5ForConditionalGeneration of transformers 5 ties the "
                f"head all the same; a head of its own (T5 1.1) is {self.vocab_size} x "
                f"{self.d_model} parameters more"
            )


class Vit(HfConfig):
    """transformers/models/vit/configuration_vit.py."""

    CLASS: ClassVar[str] = "ViTForImageClassification"

    hidden_size: Width = 768
    num_hidden_layers: Layers = 12
    num_attention_heads: Width = 12
    head_dim: Width | None = None
    intermediate_size: Width = 3072
    hidden_act: Activation = "gelu"
    image_size: Side = 224
    patch_size: Side = 16
    num_channels: Width = 3
    qkv_bias: bool = True
    id2label: dict[str, Any] | None = None
    num_labels: Count | None = None

    def _num_patches(self) -> int:
        (height, width), (down, across) = _sides(self.image_size), _sides(self.patch_size)
        return (height // down) * (width // across)

    def _num_labels(self) -> int:
        """Classes of the head: as listed, else as counted, else two."""
        if self.id2label is not None:
            return len(self.id2label)
        return 2 if self.num_labels is None else self.num_labels

    def findings(self) -> Iterator[Finding]:
        """Yield patches larger than the image, and two counts of classes."""
        if not self._num_patches():
            yield Finding("patch_size", "is larger than the image", self.patch_size, "less")
        if self.id2label is not None and self.num_labels not in (None, len(self.id2label)):
            what = "is not the number of labels in id2label"
            yield Finding("num_labels", what, self.num_labels, len(self.id2label))

    def raw(self) -> Raw:
        """Patches and a class token in place of a vocabulary."""
        hidden, labels = self.hidden_size, self._num_labels()
        down, across = _sides(self.patch_size)
        patch = self.num_channels * down * across
        return {
            "architecture": "vision-encoder",
            "num_layers": self.num_hidden_layers,
            "hidden_size": hidden,
            "num_heads": self.num_attention_heads,
            "head_dim": self.head_dim,
            "ffn_size": self.intermediate_size,
            "activation": activation(self.hidden_act),
            "vocab_size": 0,
            "max_seq_len": self._num_patches() + 1,
            "tied_embeddings": True,
            "biases": ALL_BIASES | {"qkv": self.qkv_bias},
            "position": "learned",
            "extra_params": (
                *extra(
                    "patch embedding",
                    hidden * patch + hidden,
                    f"({hidden}, {self.num_channels}, {down}, {across}) and a bias",
                ),
                *extra("class token", hidden, f"({hidden},)"),
                *extra(
                    "classification head",
                    labels * hidden + labels,
                    f"({labels}, {hidden}) and a bias",
                ),
            ),
        }

    def notes(self) -> Iterator[str]:
        """Yield which class is counted."""
        yield f"counted with a head of {self._num_labels()} classes (ViTForImageClassification)"


def _sides(side: int | tuple[int, int]) -> tuple[int, int]:
    return (side, side) if isinstance(side, int) else side
