"""Blocks of transformers and torchtitan, and what they keep for backward.

Run as a program with the library's name, it prints one JSON line.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from saved_tensors import (
    EXPERT_FFN,
    FFN,
    HEAD_DIM,
    HIDDEN,
    MICRO_BATCH,
    NUM_EXPERTS,
    NUM_HEADS,
    NUM_KV_HEADS,
    SEQ_LEN,
    TOP_K,
    VOCAB,
    SavedStorage,
    answer,
    cuda_dropout,
    cuda_rms_norm,
    hidden_states,
    peak_bytes_per_logit,
    randomise,
    record,
)


def causal_mask() -> torch.Tensor:
    return torch.full((1, 1, SEQ_LEN, SEQ_LEN), -1e4, dtype=torch.bfloat16).triu(1)


def hf_rotary_block(config: Any, layer_type: Any, rotary_type: Any) -> list[SavedStorage]:
    """A decoder layer of transformers that takes rotary embeddings."""
    layer = randomise(layer_type(config, 0))
    x = hidden_states(MICRO_BATCH, SEQ_LEN, HIDDEN)
    positions = torch.arange(SEQ_LEN)[None]
    rotary = rotary_type(config)(x, positions)
    mask = causal_mask() if config._attn_implementation == "eager" else None

    def forward() -> Any:
        return layer(x, attention_mask=mask, position_embeddings=rotary, position_ids=positions)

    excluded = (*rotary, *(() if mask is None else (mask,)))
    return record(forward, layer, excluded=excluded, second_norm="post_attention_layernorm")


def hf_llama(attention: str) -> list[SavedStorage]:
    from transformers.models.llama import modeling_llama as llama

    config = llama.LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_KV_HEADS,
        head_dim=HEAD_DIM,
        attn_implementation=attention,
    )
    return hf_rotary_block(config, llama.LlamaDecoderLayer, llama.LlamaRotaryEmbedding)


def hf_mixtral() -> list[SavedStorage]:
    from transformers.models.mixtral import modeling_mixtral as mixtral

    config = mixtral.MixtralConfig(
        hidden_size=HIDDEN,
        intermediate_size=EXPERT_FFN,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_KV_HEADS,
        head_dim=HEAD_DIM,
        num_local_experts=NUM_EXPERTS,
        num_experts_per_tok=TOP_K,
        attn_implementation="sdpa",
        experts_implementation="grouped_mm",
    )
    return hf_rotary_block(config, mixtral.MixtralDecoderLayer, mixtral.MixtralRotaryEmbedding)


def hf_starcoder2() -> list[SavedStorage]:
    from transformers.models.starcoder2 import modeling_starcoder2 as starcoder2

    config = starcoder2.Starcoder2Config(
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_KV_HEADS,
        attention_dropout=0.0,
        residual_dropout=0.0,
        embedding_dropout=0.0,
        attn_implementation="sdpa",
    )
    layer, rotary = starcoder2.Starcoder2DecoderLayer, starcoder2.Starcoder2RotaryEmbedding
    return hf_rotary_block(config, layer, rotary)


def hf_gpt2(attention: str, *, dropout: float) -> list[SavedStorage]:
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block, GPT2Config

    config = GPT2Config(
        n_embd=HIDDEN,
        n_inner=FFN,
        n_head=NUM_HEADS,
        resid_pdrop=dropout,
        attn_pdrop=dropout,
        attn_implementation=attention,
    )
    layer = randomise(GPT2Block(config, 0))
    x = hidden_states(MICRO_BATCH, SEQ_LEN, HIDDEN)
    mask = causal_mask() if attention == "eager" else None
    excluded = () if mask is None else (mask,)
    with cuda_dropout():
        return record(
            lambda: layer(x, attention_mask=mask), layer, excluded=excluded, second_norm="ln_2"
        )


def hf_loss() -> float:
    from transformers.loss.loss_utils import ForCausalLMLoss

    return peak_bytes_per_logit(lambda logits, labels: ForCausalLMLoss(logits, labels, VOCAB))


def import_torchtitan() -> None:
    """Make torchtitan importable without Triton, which one of its modules needs unguarded."""

    class Kernels(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return None

    name = "torchtitan.distributed.minimal_async_ep.kernels"
    sys.modules[name] = Kernels(name)


def titan_model(*, sequence_parallel: bool) -> Any:
    """A Llama model of one block; attention is scaled_dot_product_attention."""
    import torchtitan.models.llama3 as llama3
    from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3.sharding import set_llama3_sharding_config

    layers = llama3._build_llama3_layers(
        n_layers=1,
        dim=HIDDEN,
        n_heads=NUM_HEADS,
        n_kv_heads=NUM_KV_HEADS,
        hidden_dim=FFN,
        attn_backend="flex",
        rope=ComplexRoPE.Config(dim=HEAD_DIM, max_seq_len=SEQ_LEN, theta=1e4),
    )
    attention = layers[0].attention
    attention.inner_attention = ScaledDotProductAttention.Config()
    attention.head_dim = HEAD_DIM
    attention.qkv_linear.head_dim = HEAD_DIM
    attention.qkv_linear.wqkv.out_features = (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM
    attention.wo.in_features = NUM_HEADS * HEAD_DIM
    config = llama3.Llama3Model.Config(
        dim=HIDDEN,
        vocab_size=VOCAB,
        tok_embeddings=Embedding.Config(num_embeddings=VOCAB, embedding_dim=HIDDEN),
        norm=RMSNorm.Config(normalized_shape=HIDDEN),
        lm_head=Linear.Config(in_features=HIDDEN, out_features=VOCAB),
        layers=layers,
    )
    set_llama3_sharding_config(config, enable_sp=sequence_parallel)
    model = randomise(config.build())
    rope = model.layers["0"].attention.rope
    rope.cache = rope._precompute_cache()
    return model


def titan_block(*, fused_norm: bool, compiled: bool = False) -> list[SavedStorage]:
    block = titan_model(sequence_parallel=False).layers["0"]
    x = hidden_states(MICRO_BATCH, SEQ_LEN, HIDDEN)
    run = block
    if compiled:
        run = torch.compile(block, backend="aot_eager_decomp_partition", fullgraph=True)
    with ExitStack() as stack:
        if fused_norm:
            stack.enter_context(cuda_rms_norm())
        return record(
            lambda: run(x, None, None),
            block,
            excluded=(block.attention.rope.cache,),
            second_norm="" if compiled else "ffn_norm",
            compiled=compiled,
        )


def titan_mixture() -> list[SavedStorage]:
    """A mixture of experts alone; its input, an output of the block's norm, is not counted."""
    from torchtitan.models.common.linear import Linear
    from torchtitan.models.common.moe import (
        GroupedExperts,
        MoE,
        RoutedExperts,
        TokenChoiceTopKRouter,
    )
    from torchtitan.models.common.token_dispatcher import LocalTokenDispatcher

    router = TokenChoiceTopKRouter.Config(
        num_experts=NUM_EXPERTS,
        top_k=TOP_K,
        gate=Linear.Config(in_features=HIDDEN, out_features=NUM_EXPERTS),
        score_func="softmax",
        route_norm=True,
    )
    routed = RoutedExperts.Config(
        inner_experts=GroupedExperts.Config(
            dim=HIDDEN, hidden_dim=EXPERT_FFN, num_experts=NUM_EXPERTS
        ),
        token_dispatcher=LocalTokenDispatcher.Config(num_experts=NUM_EXPERTS, top_k=TOP_K),
    )
    config = MoE.Config(num_experts=NUM_EXPERTS, router=router, routed_experts=routed)
    mixture = randomise(config.build())
    x = hidden_states(MICRO_BATCH, SEQ_LEN, HIDDEN)
    return record(lambda: mixture(x), mixture, excluded=(x,))


@contextmanager
def tensor_parallel_mesh(tp: int) -> Iterator[Any]:
    """torchtitan's meshes on a fake world in which this process is rank 0."""
    import torch.distributed as dist
    import torchtitan.distributed.parallel_dims as dims
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torchtitan.distributed.utils import get_spmd_context

    dims.device_type = "cpu"
    dist.init_process_group("fake", rank=0, world_size=tp, store=FakeStore())
    parallel = dims.ParallelDims(dp_replicate=1, dp_shard=1, cp=1, tp=tp, pp=1, ep=1, world_size=tp)
    parallel.build_mesh()
    with get_spmd_context(parallel_dims=parallel)():
        yield parallel
    dist.destroy_process_group()


def titan_parallel_block(tp: int) -> list[SavedStorage]:
    model = titan_model(sequence_parallel=True)
    block = model.layers["0"]
    x = hidden_states(MICRO_BATCH, SEQ_LEN // tp, HIDDEN)
    with tensor_parallel_mesh(tp) as parallel, cuda_rms_norm():
        model.parallelize(parallel)
        return record(
            lambda: block(x, None, None),
            block,
            excluded=(block.attention.rope.cache,),
            second_norm="ffn_norm",
        )


def titan_loss() -> float:
    from torchtitan.components.loss import cross_entropy_loss

    return peak_bytes_per_logit(cross_entropy_loss)


def titan_parallel_loss(tp: int) -> float:
    """Peak per local logit: every rank holds a slice of the vocabulary."""
    from torchtitan.components.loss import _LossParallelCrossEntropy

    with tensor_parallel_mesh(tp) as parallel:
        group = parallel.get_mesh("tp").get_group()

        def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return _LossParallelCrossEntropy.apply(
                logits.flatten(0, 1).float(), labels.flatten(0, 1), group, tp * VOCAB, "sum"
            )

        return peak_bytes_per_logit(loss)


def titan_compiled_loss() -> list[SavedStorage]:
    """What the compiled loss keeps; its backward is one kernel, whose peak is not seen here."""
    from torchtitan.components.loss import cross_entropy_loss

    head = randomise(torch.nn.Linear(HIDDEN, VOCAB, bias=False))
    x = hidden_states(MICRO_BATCH, SEQ_LEN, HIDDEN)
    labels = torch.randint(0, VOCAB, (MICRO_BATCH, SEQ_LEN))
    loss = torch.compile(cross_entropy_loss, backend="aot_eager_decomp_partition")
    return record(lambda: loss(head(x), labels), head, compiled=True)


def main(library: str) -> None:
    if library == "transformers":
        answer(
            {
                "llama_sdpa": lambda: hf_llama("sdpa"),
                "llama_eager": lambda: hf_llama("eager"),
                "mixtral_sdpa": hf_mixtral,
                "starcoder2_sdpa": hf_starcoder2,
                "gpt2_sdpa": lambda: hf_gpt2("sdpa", dropout=0.0),
                "gpt2_eager": lambda: hf_gpt2("eager", dropout=0.0),
                "gpt2_eager_dropout": lambda: hf_gpt2("eager", dropout=0.1),
            },
            {"causal_lm": hf_loss},
        )
        return
    import_torchtitan()
    answer(
        {
            "eager": lambda: titan_block(fused_norm=False),
            "cuda": lambda: titan_block(fused_norm=True),
            "compiled": lambda: titan_block(fused_norm=True, compiled=True),
            "mixture": titan_mixture,
            "tp4": lambda: titan_parallel_block(4),
            "compiled_loss": titan_compiled_loss,
        },
        {"cross_entropy": titan_loss, "loss_parallel": lambda: titan_parallel_loss(4)},
    )


if __name__ == "__main__":
    main(sys.argv[1])
