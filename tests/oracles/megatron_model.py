"""Parameters of one Megatron-Core rank, counted on the framework's own GPTModel without a GPU.

Run as a program, with the folder that holds the package ``megatron`` as argument, it answers
every JSON line it reads with one JSON line. The models are built on torch's meta device inside
a fake process group of the whole world, so nothing is allocated and nobody is called.

What differs from training is only what a machine without a GPU lacks: modules of Triton kernels
are replaced by empty ones, and layers are built from Megatron-Core's own linear classes instead
of Transformer Engine's. The two place the same parameters on a rank but for one case, see
:func:`engine_stand_ins`.
"""

from __future__ import annotations

import re
import sys
import types
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starts import serve


@dataclass(frozen=True, kw_only=True)
class RankCase:
    """A model and a layout as Megatron-Core is told them, and the rank to count."""

    config: dict[str, Any]
    """Fields of TransformerConfig (of MLATransformerConfig where ``latent_attention``)."""
    vocab_size: int  # Unpadded; Megatron pads it to a multiple of ``vocab_padding · tp``
    vocab_padding: int
    max_sequence_length: int
    position_embedding: str
    tied: bool
    latent_attention: bool = False
    tp: int = 1
    pp: int = 1
    vpp: int = 1
    ep: int = 1
    stage: int = 0
    tensor_rank: int = 0
    expert_rank: int = 0
    mtp_layers: int = 0
    chunks: list[int] = field(default_factory=list)
    """Layers of every model chunk in pipeline order; empty for Megatron's own even split."""
    adapters: dict[str, Any] = field(default_factory=dict)
    """Fields of Megatron-Bridge's LoRA; what it trains alone is counted then."""

    @property
    def degrees(self) -> dict[str, int | None]:
        return {
            "tensor_model_parallel_size": self.tp,
            "pipeline_model_parallel_size": self.pp,
            "virtual_pipeline_model_parallel_size": self.vpp if self.vpp > 1 else None,
            "expert_model_parallel_size": self.ep,
        }

    @property
    def rank(self) -> int:
        """Position in Megatron's order of axes: tp fastest, then ep (inside dp), then pp."""
        return (self.stage * self.ep + self.expert_rank) * self.tp + self.tensor_rank


def replace_triton_modules(megatron: Path) -> None:
    """Stand-ins for modules that import Triton unguarded: kernels no meta model ever calls."""

    class Kernels(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return object

    sys.modules["triton"] = None
    for path in (megatron / "megatron" / "core").rglob("*.py"):
        if re.search(r"^(import|from) triton\b", path.read_text(encoding="utf-8"), re.MULTILINE):
            name = ".".join(path.relative_to(megatron).with_suffix("").parts)
            sys.modules[name] = Kernels(name)


def prepare(megatron: Path) -> None:
    """Make Megatron-Core importable here: its folder, Python 3.12's name, no Triton, no CUDA."""
    import typing_extensions

    if not hasattr(typing, "override"):
        typing.override = typing_extensions.override
    replace_triton_modules(megatron)
    sys.path.insert(0, str(megatron))
    import torch

    torch.cuda.Stream = type("Stream", (), {"__init__": lambda *_, **__: None})
    torch.cuda.current_device = lambda: "meta"
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor


@contextmanager
def process_groups(world_size: int, rank: int = 0, **degrees: Any) -> Iterator[Any]:
    """Megatron's parallel state on a fake world in which this process is one rank."""
    import torch.distributed as dist
    from megatron.core import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        parallel_state.initialize_model_parallel(**degrees, create_gloo_process_groups=False)
        yield parallel_state
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def pipeline_layout(chunks: list[int], mtp_layers: int) -> list[list[str]] | None:
    """Megatron's list of what every chunk holds; None lets Megatron split evenly."""
    if not chunks:
        return None
    layout = [["decoder"] * number for number in chunks]
    layout[0].insert(0, "embedding")
    layout[-1] += ["mtp"] * mtp_layers + ["loss"]
    return layout


def transformer_config(case: RankCase) -> Any:
    import torch
    from megatron.core.transformer import MLATransformerConfig, TransformerConfig

    kind = MLATransformerConfig if case.latent_attention else TransformerConfig
    return kind(
        **case.config,
        **case.degrees,
        pipeline_model_parallel_layout=pipeline_layout(case.chunks, case.mtp_layers),
        mtp_num_layers=case.mtp_layers or None,
        pipeline_dtype=torch.bfloat16,
        use_cpu_initialization=True,
        perform_initialization=False,
        gradient_accumulation_fusion=False,
    )


def engine_stand_ins() -> tuple[type, type]:
    """Transformer Engine's ``duplicated`` linear layer and its attention, as far as sizes go.

    Latent attention is built from both: its down-projections are whole on every tensor rank,
    where Megatron-Core's own linear classes would split them, and its two head sizes need an
    attention kernel (without parameters) that Megatron-Core's own does not offer.
    """
    import torch

    class DuplicatedLinear(torch.nn.Module):
        def __init__(self, inputs: int, outputs: int, *, parallel_mode: str, **_: Any) -> None:
            super().__init__()
            if parallel_mode != "duplicated":
                raise ValueError(f"not a down-projection: parallel mode {parallel_mode}")
            self.weight = torch.nn.Parameter(torch.empty(outputs, inputs))

    class AttentionKernel(torch.nn.Module):
        def __init__(self, **_: Any) -> None:
            super().__init__()

    return DuplicatedLinear, AttentionKernel


def use_engine_stand_ins(spec: Any) -> None:
    from megatron.core.transformer import multi_latent_attention

    linear, kernel = engine_stand_ins()
    multi_latent_attention.TELinear = linear
    for layer in spec.layer_specs:
        attention = layer.submodules.self_attention.submodules
        attention.linear_q_down_proj = linear
        attention.linear_kv_down_proj = linear
        attention.core_attention = kernel


def padded_vocab_size(case: RankCase) -> int:
    """The vocabulary as Megatron-LM pads it before it builds the model."""
    from megatron.core.tokenizers.utils.build_tokenizer import vocab_size_with_padding

    arguments = types.SimpleNamespace(
        make_vocab_size_divisible_by=case.vocab_padding,
        tensor_model_parallel_size=case.tp,
        rank=case.rank,
    )
    padded: int = vocab_size_with_padding(case.vocab_size, arguments, logging_enabled=False)
    return padded


def build_chunk(case: RankCase, config: Any, chunk: int | None) -> Any:
    """One model chunk of the rank: GPTModel on the meta device."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_decoder_block_spec,
        get_gpt_mtp_block_spec,
    )

    place = {"ignore_virtual": False, "vp_stage": chunk}
    spec = get_gpt_decoder_block_spec(
        config,
        use_transformer_engine=False,
        normalization=config.normalization,
        vp_stage=chunk,
    )
    if case.latent_attention:
        use_engine_stand_ins(spec)
    mtp_spec = None
    if case.mtp_layers:
        mtp_spec = get_gpt_mtp_block_spec(
            config, spec, use_transformer_engine=False, vp_stage=chunk
        )
    with torch.device("meta"):
        return GPTModel(
            config=config,
            transformer_layer_spec=spec,
            mtp_block_spec=mtp_spec,
            vocab_size=padded_vocab_size(case),
            max_sequence_length=case.max_sequence_length,
            pre_process=parallel_state.is_pipeline_first_stage(**place),
            post_process=parallel_state.is_pipeline_last_stage(**place),
            share_embeddings_and_output_weights=case.tied,
            position_embedding_type=case.position_embedding,
            vp_stage=chunk,
        )


def with_adapters(model: Any, adapters: dict[str, Any]) -> Any:
    """The model as Megatron-Bridge's LoRA transforms it: weights frozen, adapters beside them."""
    import torch
    from bridge_start import adapter_class

    with torch.device("meta"):
        return adapter_class()(**adapters)([model])[0]


def counted_tensors(model: Any) -> Iterator[tuple[str, Any]]:
    """Parameters, and the balancing offsets of routers: model files count these with them."""
    yield from model.named_parameters()
    for name, tensor in model.named_buffers():
        if name.endswith("router.expert_bias"):
            yield name, tensor


def parameters(case: RankCase) -> dict[str, int]:
    """Parameters of all chunks of the rank by tensor name, layers and experts added up."""
    totals: dict[str, int] = {}
    with process_groups(case.tp * case.ep * case.pp, case.rank, **case.degrees):
        config = transformer_config(case)
        for chunk in range(case.vpp):
            model = build_chunk(case, config, chunk if case.vpp > 1 else None)
            if case.adapters:
                model = with_adapters(model, case.adapters)
            for name, tensor in counted_tensors(model):
                if case.adapters and not tensor.requires_grad:
                    continue
                short = re.sub(r"(layers|local_experts)\.\d+\.", r"\1.", name)
                totals[short] = totals.get(short, 0) + tensor.numel()
    return totals


if __name__ == "__main__":
    serve(lambda given: parameters(RankCase(**given)), lambda: prepare(Path(sys.argv[1])))
