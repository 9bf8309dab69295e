"""Blocks of transformers and torchtitan, and what they keep for backward.

Run as a program with the library's name, it prints one JSON line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import saved_tensors as sizes
import torch
from saved_tensors import (
    SavedStorage,
    answer,
    cuda_dropout,
    cuda_rms_norm,
    hidden_states,
    kept_by_selective,
    peak_bytes_per_logit,
    randomise,
    record,
)
from torchtitan_start import stub_kernels


def causal_mask() -> torch.Tensor:
    return torch.full((1, 1, sizes.SEQ_LEN, sizes.SEQ_LEN), -1e4, dtype=torch.bfloat16).triu(1)


def hf_rotary_block(config: Any, layer_type: Any, rotary_type: Any) -> list[SavedStorage]:
    """A decoder layer of transformers that takes rotary embeddings."""
    layer = randomise(layer_type(config, 0))
    x = hidden_states(sizes.MICRO_BATCH, sizes.SEQ_LEN, sizes.HIDDEN)
    positions = torch.arange(sizes.SEQ_LEN)[None]
    rotary = rotary_type(config)(x, positions)
    mask = causal_mask() if config._attn_implementation == "eager" else None

    def forward() -> Any:
        return layer(x, attention_mask=mask, position_embeddings=rotary, position_ids=positions)

    excluded = (*rotary, *(() if mask is None else (mask,)))
    return record(forward, layer, excluded=excluded, second_norm="post_attention_layernorm")


def hf_llama(attention: str) -> list[SavedStorage]:
    from transformers.models.llama import modeling_llama as llama

    config = llama.LlamaConfig(
        **sizes.HF_SHAPE,
        head_dim=sizes.HEAD_DIM,
        attn_implementation=attention,
    )
    return hf_rotary_block(config, llama.LlamaDecoderLayer, llama.LlamaRotaryEmbedding)


def hf_mixtral() -> list[SavedStorage]:
    from transformers.models.mixtral import modeling_mixtral as mixtral

    config = mixtral.MixtralConfig(
        **sizes.HF_SHAPE | {"intermediate_size": sizes.EXPERT_FFN},
        head_dim=sizes.HEAD_DIM,
        num_local_experts=sizes.NUM_EXPERTS,
        num_experts_per_tok=sizes.TOP_K,
        attn_implementation="sdpa",
        experts_implementation="grouped_mm",
    )
    return hf_rotary_block(config, mixtral.MixtralDecoderLayer, mixtral.MixtralRotaryEmbedding)


def hf_starcoder2() -> list[SavedStorage]:
    from transformers.models.starcoder2 import modeling_starcoder2 as starcoder2

    config = starcoder2.Starcoder2Config(
        **sizes.HF_SHAPE,
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
        n_embd=sizes.HIDDEN,
        n_inner=sizes.FFN,
        n_head=sizes.NUM_HEADS,
        resid_pdrop=dropout,
        attn_pdrop=dropout,
        attn_implementation=attention,
    )
    layer = randomise(GPT2Block(config, 0))
    x = hidden_states(sizes.MICRO_BATCH, sizes.SEQ_LEN, sizes.HIDDEN)
    mask = causal_mask() if attention == "eager" else None
    excluded = () if mask is None else (mask,)
    with cuda_dropout():
        return record(
            lambda: layer(x, attention_mask=mask), layer, excluded=excluded, second_norm="ln_2"
        )


def hf_loss() -> float:
    from transformers.loss.loss_utils import ForCausalLMLoss

    return peak_bytes_per_logit(lambda logits, labels: ForCausalLMLoss(logits, labels, sizes.VOCAB))


def titan_model(kind: str = "fused") -> Any:
    """A model of one block; attention is scaled_dot_product_attention."""
    from torchtitan.models import deepseek_v3, qwen3
    from torchtitan.models.common import ComplexRoPE, CosSinRoPE, Embedding, Linear, RMSNorm
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.deepseek_v3 import sharding as deepseek_sharding
    from torchtitan.models.qwen3 import sharding

    given = {"dim": sizes.HIDDEN, "n_layers": 1, "n_heads": sizes.NUM_HEADS, "attn_backend": "flex"}
    positions = {"max_seq_len": sizes.SEQ_LEN, "theta": 1e4}
    mixture = {"moe_hidden_dim": sizes.EXPERT_FFN, "num_experts": sizes.NUM_EXPERTS}
    mixture["moe_comm_backend"] = "standard"
    if kind.startswith("latent"):
        cls, shard = deepseek_v3.DeepSeekV3Model, deepseek_sharding.set_deepseek_v3_sharding_config
        (layer,) = deepseek_v3._build_dsv3_layers(
            **given,
            **mixture,
            n_dense_layers=int("mixture" not in kind),
            q_lora_rank=sizes.QUERY_RANK if "query" in kind else 0,
            kv_lora_rank=sizes.KV_RANK,
            qk_nope_head_dim=sizes.HEAD_DIM - sizes.ROPE_DIM,
            qk_rope_head_dim=sizes.ROPE_DIM,
            v_head_dim=sizes.HEAD_DIM,
            mscale=1.0,
            dense_hidden_dim=sizes.FFN,
            num_shared_experts=2,
            router_top_k=sizes.TOP_K,
            router_score_func="softmax",
            router_route_norm=True,
            non_blocking_capacity_factor=None,
            rope=ComplexRoPE.Config(dim=sizes.ROPE_DIM, **positions),
        )
    else:
        cls, shard = qwen3.Qwen3Model, sharding.set_qwen3_sharding_config
        given |= {
            "n_kv_heads": sizes.NUM_KV_HEADS,
            "head_dim": sizes.HEAD_DIM,
            "fuse_qkv": kind != "separate",
        }
        given["rope"] = CosSinRoPE.Config(dim=sizes.HEAD_DIM, **positions)
        if kind == "mixture":
            (layer,) = qwen3._build_qwen3_moe_layers(**given, **mixture, top_k=sizes.TOP_K)
        else:
            (layer,) = qwen3._build_qwen3_layers(**given, hidden_dim=sizes.FFN)
        layer.attention.qk_norm = layer.attention.qk_norm if kind == "normed" else None
    layer.attention.inner_attention = ScaledDotProductAttention.Config()
    config = cls.Config(
        dim=sizes.HIDDEN,
        vocab_size=sizes.VOCAB,
        tok_embeddings=Embedding.Config(num_embeddings=sizes.VOCAB, embedding_dim=sizes.HIDDEN),
        norm=RMSNorm.Config(normalized_shape=sizes.HIDDEN),
        lm_head=Linear.Config(in_features=sizes.HIDDEN, out_features=sizes.VOCAB),
        layers=[layer],
    )
    shard(config, enable_sp=True, enable_ep=False)
    model = randomise(config.build())
    rope = model.layers["0"].attention.rope
    rope.cache = rope._precompute_cache()
    return model


@contextmanager
def tensor_parallel_mesh(tp: int, backend: str = "spmd_types") -> Iterator[Any]:
    """torchtitan's meshes on a fake world in which this process is rank 0."""
    import torch.distributed as dist
    import torchtitan.distributed.parallel_dims as dims
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torchtitan.distributed.utils import get_spmd_context

    dims.device_type = "cpu"
    dist.init_process_group("fake", rank=0, world_size=tp, store=FakeStore())
    others = dict.fromkeys(("dp_replicate", "dp_shard", "cp", "pp", "ep"), 1)
    parallel = dims.ParallelDims(**others, tp=tp, world_size=tp, spmd_backend=backend)
    parallel.build_mesh()
    with get_spmd_context(parallel_dims=parallel)():
        yield parallel
    dist.destroy_process_group()


def titan_block(kind: str, way: str, policy: str) -> list[SavedStorage]:
    """What a block keeps that runs as ``way`` says, by torchtitan's own policy if any.

    Attention's kernel has another name on a CPU; a router's gate has fp32, as by autocast on a
    GPU. One rank of experts sends its tokens as many do.
    """
    import torch.distributed as dist
    import torchtitan.distributed.activation_checkpoint as checkpointing
    from torch.distributed.tensor import DTensor, Shard
    from torchtitan.distributed.utils import get_spmd_backend, set_spmd_backend

    class SelectiveAC(checkpointing.SelectiveAC):
        def get_save_ops(self) -> set[Any]:
            attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
            return super().get_save_ops() | {attention}

    compiled, tp = "compiled" in way, 4 if "tp4" in way else 1
    takes_dtensors = tp == 1 or bool(policy and not compiled)
    backend = "partial_dtensor" if takes_dtensors else "spmd_types"
    model = titan_model(kind)
    run = block = model.layers["0"]
    x = hidden_states(sizes.MICRO_BATCH, sizes.SEQ_LEN // tp, sizes.HIDDEN)
    with ExitStack() as stack:
        stack.callback(set_spmd_backend, get_spmd_backend())
        set_spmd_backend(backend)
        if way != "unfused_norms":
            stack.enter_context(cuda_rms_norm())
        if "mixture" in kind:
            gate = block.moe.router.gate
            gate.forward = lambda x: torch.nn.functional.linear(x.float(), gate.weight.float())
        if tp > 1:
            parallel = stack.enter_context(tensor_parallel_mesh(tp, backend))
            model.parallelize(parallel)
            if takes_dtensors:
                x = DTensor.from_local(x, parallel.get_mesh("tp"), [Shard(1)])
        if "ep" in way:
            dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
            stack.callback(dist.destroy_process_group)
            mesh = dist.init_device_mesh("cpu", (1,), mesh_dim_names=("ep",))
            block.moe.routed_experts.token_dispatcher.wire_meshes(ep_mesh=mesh)
        if policy:
            own = SelectiveAC(SelectiveAC.Config(preserve_rng_state=False))
            run = own._wrap_block(block, base_fqn="layers.0")
        if compiled:
            torch._dynamo.reset()
            torch._dynamo.config.capture_scalar_outputs = True
            torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint = True
            run = torch.compile(run, backend="aot_eager_decomp_partition", fullgraph=True)
        elif policy:
            return kept_by_selective(lambda: run(x, None, None), x)
        return record(
            lambda: run(x, None, None),
            block,
            excluded=(block.attention.rope.cache,),
            second_norm="" if compiled else "ffn_norm",
            compiled=compiled,
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
                logits.flatten(0, 1).float(), labels.flatten(0, 1), group, tp * sizes.VOCAB, "sum"
            )

        return peak_bytes_per_logit(loss)


def titan_compiled_loss() -> list[SavedStorage]:
    """What the compiled loss keeps; its backward is one kernel, whose peak is not seen here."""
    from torchtitan.components.loss import cross_entropy_loss

    head = randomise(torch.nn.Linear(sizes.HIDDEN, sizes.VOCAB, bias=False))
    x = hidden_states(sizes.MICRO_BATCH, sizes.SEQ_LEN, sizes.HIDDEN)
    labels = torch.randint(0, sizes.VOCAB, (sizes.MICRO_BATCH, sizes.SEQ_LEN))
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
    stub_kernels()
    answer(
        {
            "compiled_loss": titan_compiled_loss,
            **{" ".join(case): partial(titan_block, *case) for case in sizes.TITAN},
        },
        {"cross_entropy": titan_loss, "loss_parallel": lambda: titan_parallel_loss(4)},
    )


if __name__ == "__main__":
    main(sys.argv[1])
