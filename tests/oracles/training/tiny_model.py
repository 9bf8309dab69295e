"""The model of tiny-gpt.yaml in torch, and a batch that it can learn by heart."""

import os
from pathlib import Path
from typing import NoReturn

import torch
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = yaml.safe_load(Path(__file__).with_name("tiny-gpt.yaml").read_text())
STEPS = 10


def build() -> torch.nn.Module:
    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=SIZES["num_layers"],
        hidden_size=SIZES["hidden_size"],
        num_attention_heads=SIZES["num_heads"],
        num_key_value_heads=SIZES["num_kv_heads"],
        intermediate_size=SIZES["ffn_size"],
        vocab_size=SIZES["vocab_size"],
        max_position_embeddings=SIZES["max_seq_len"],
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def batch(rank: int, micro_batch: int, seq_len: int) -> torch.Tensor:
    """The same tokens in every step, other ones on every rank."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(0, SIZES["vocab_size"], (micro_batch, seq_len), generator=generator)


def leave() -> NoReturn:
    """End without tearing the interpreter down: threads of gloo may still ask for it, and abort."""
    os._exit(0)
