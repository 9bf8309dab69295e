"""A decoder layer of Llama with PEFT's adapters, as Trainer runs it: what it keeps for backward.

Run as a program with ``targets,rank`` it prints one JSON line: the storages, and the sizes of
trained and frozen parameters of the layer; with ``targets,rank,mixture`` of a layer of Mixtral.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import saved_tensors as sizes
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM


def plain(*, is_mixture: bool) -> Any:
    """A model of one layer."""
    shape: dict[str, Any] = {
        **sizes.HF_SHAPE,
        "num_hidden_layers": 1,
        "head_dim": sizes.HEAD_DIM,
        "vocab_size": sizes.VOCAB,
        "attn_implementation": "sdpa",
    }
    if not is_mixture:
        return LlamaForCausalLM(LlamaConfig(**shape))
    experts = {"num_local_experts": sizes.NUM_EXPERTS, "num_experts_per_tok": sizes.TOP_K}
    experts["intermediate_size"] = sizes.EXPERT_FFN
    return MixtralForCausalLM(MixtralConfig(**shape | experts))


def adapted(targets: str, rank: int, *, is_mixture: bool) -> Any:
    """The model in bf16 with adapters, which PEFT keeps in fp32."""
    names: str | list[str] = targets if targets == "all-linear" else targets.split("+")
    lora = LoraConfig(r=rank, target_modules=names, lora_dropout=0.0, task_type="CAUSAL_LM")
    return get_peft_model(plain(is_mixture=is_mixture).to(torch.bfloat16), lora)


def kept(model: Any) -> list[tuple[int, int]]:
    """Elements and bytes per element of every storage kept, one per tensor of the tokens."""
    base = model.base_model.model.model
    x = torch.randn(
        sizes.MICRO_BATCH, sizes.SEQ_LEN, sizes.HIDDEN, dtype=torch.bfloat16, requires_grad=True
    )
    rotary = base.rotary_emb(x, torch.arange(sizes.SEQ_LEN)[None])
    found: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        found.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        base.layers[0](x, position_embeddings=rotary)
    left_out = {each.untyped_storage().data_ptr() for each in (*model.parameters(), *rotary)}
    tensors = [each for at, each in found.items() if at not in left_out]
    measured = [(each.untyped_storage().nbytes(), each.element_size(), each) for each in tensors]
    return [
        (num_bytes // size, size)
        for num_bytes, size, each in measured
        if each.shape[-1] > 1 and type(each.grad_fn).__name__ != "TBackward0"
    ]
    # without statistics of norms, and 16-bit copies of the adapters, which count as weights


def main() -> None:
    warnings.simplefilter("ignore")
    targets, rank, *rest = sys.argv[1].split(",")
    model = adapted(targets, int(rank), is_mixture=bool(rest))
    trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
    dtypes = {str(each.dtype) for each in model.parameters() if each.requires_grad}
    found = {"kept": kept(model), "trained": trained, "dtypes": sorted(dtypes)}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
