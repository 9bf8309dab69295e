"""A small GPT in plain torch, written op by op as transformers writes Llama."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - its usual name
from torch.utils.checkpoint import checkpoint

Sizes = dict[str, int]


class Norm(nn.Module):
    """RMSNorm in separate operations, as transformers writes it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        hidden = sizes["hidden_size"]
        self.head_dim = hidden // sizes["num_heads"]
        self.q, self.k, self.v, self.o = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        heads = (*x.shape[:2], -1, self.head_dim)
        q, k, v = (linear(x).view(heads).transpose(1, 2) for linear in (self.q, self.k, self.v))
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(out.transpose(1, 2).reshape(*x.shape[:2], -1))


class FeedForward(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        hidden, ffn = sizes["hidden_size"], sizes["ffn_size"]
        self.gate, self.up = (nn.Linear(hidden, ffn, bias=False) for _ in range(2))
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention_norm, self.attention = Norm(sizes["hidden_size"]), Attention(sizes)
        self.mlp_norm, self.mlp = Norm(sizes["hidden_size"]), FeedForward(sizes)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


class Gpt(nn.Module):
    """A decoder, or some of its layers: the first stage embeds, the last has the head."""

    def __init__(
        self,
        sizes: Sizes,
        layers: range,
        positions: tuple[torch.Tensor, torch.Tensor],
        *,
        recompute: bool,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        vocab, hidden = sizes["vocab_size"], sizes["hidden_size"]
        self.embedding = nn.Embedding(vocab, hidden) if layers.start == 0 else None
        self.layers = nn.ModuleList(Block(sizes) for _ in layers)
        is_last = layers.stop == sizes["num_layers"]
        self.norm = Norm(hidden) if is_last else None
        self.head = nn.Linear(hidden, vocab, bias=False) if is_last else None
        self.recompute = recompute
        self.positions = positions
        self.on_layers: Callable[[], None] = lambda: None
        """Called when the layers' forward is over, before the head's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            if self.recompute:
                x = checkpoint(layer, x, *self.positions, use_reentrant=False)
            else:
                x = layer(x, *self.positions)
        self.on_layers()
        return x if self.head is None else self.head(self.norm(x))


def positions(sizes: Sizes, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of the rotary positions."""
    width = sizes["hidden_size"] // sizes["num_heads"]
    turns = torch.arange(0, width, 2, device=device) / width
    tokens = torch.arange(sizes["seq_len"], device=device)
    angles = torch.outer(tokens, 10000.0**-turns).repeat(1, 2)
    return angles.cos(), angles.sin()


def loss_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Of the same tokens: what is learnt does not matter here."""
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
