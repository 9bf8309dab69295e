"""The start of a Megatron-LM training without a GPU: its own code reads and checks arguments.

Run as a program, with the folder that holds the package ``megatron`` as argument, it answers
JSON lines (``starts.py``). The stages are those of a real start: parse_args, validate_args, the
transformer's and the optimizer's configuration, the number of micro-batches, the process groups of
the whole world (a fake one), and the pipeline schedule up to where it would run the first layer.

What differs from training is what a machine without a GPU lacks: the questions for the device's
generation and for the version of Transformer Engine are answered as on the machine asked about.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from megatron_model import (
    counted_tensors,
    engine_stand_ins,
    prepare,
    process_groups,
    use_engine_stand_ins,
)
from starts import Case, serve_starts

GENERATIONS = {"ampere": (8, 0), "hopper": (9, 0), "blackwell": (10, 0)}
MODULES = (
    "megatron.training.arguments",
    "megatron.core.transformer.transformer_config",
    "megatron.core.optimizer.optimizer_config",
)
"""Those that ask for the version of Transformer Engine."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """The words behind the training script, and where they run."""

    words: list[str]
    num_gpus: int
    environment: dict[str, str] = field(default_factory=dict)
    generation: str = "hopper"
    counts: bool = False
    """Build the model on the meta device, and say its parameters and what its layers do."""


class FusedAdam:
    """Transformer Engine's optimizer as far as Megatron looks at it."""

    def __init__(
        self,
        master_weight_dtype: Any,
        exp_avg_dtype: Any,
        exp_avg_sq_dtype: Any,
        use_decoupled_grad: bool,
    ) -> None:
        raise NotImplementedError


class ReachedModelError(Exception):
    """The schedule accepted its numbers and asks the model for its kind."""


def set_machine(case: Case) -> None:
    import torch

    generation = GENERATIONS[case.generation]
    properties = types.SimpleNamespace(
        major=generation[0], minor=generation[1], multi_processor_count=132, name=case.generation
    )
    torch.cuda.get_device_capability = lambda *_: generation
    torch.cuda.get_device_properties = lambda *_: properties


def pretend_transformer_engine() -> None:
    """Its version is asked for in three modules, its fused kernels are by the configuration."""
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.core.transformer.moe import moe_utils

    for name in MODULES:
        __import__(name)
        sys.modules[name].is_te_min_version = lambda *_, **__: True
    rope_utils.fused_apply_rotary_pos_emb = object()
    vars(moe_utils).update({name: object() for name in vars(moe_utils) if "fused_" in name})


@contextmanager
def fused_adam() -> Iterator[None]:
    name = "transformer_engine.pytorch.optimizers"
    parents = {part: types.ModuleType(part) for part in (name.rpartition(".")[0], name)}
    parents["transformer_engine"] = types.ModuleType("transformer_engine")
    parents[name].FusedAdam = FusedAdam
    before = {part: sys.modules.get(part) for part in parents}
    sys.modules.update(parents)
    try:
        yield
    finally:
        for part, module in before.items():
            sys.modules.pop(part)
            if module is not None:
                sys.modules[part] = module


def optimizer_config(args: Any) -> None:
    import dataclasses

    from megatron.core.optimizer.optimizer_config import OptimizerConfig

    names = [each.name for each in dataclasses.fields(OptimizerConfig) if hasattr(args, each.name)]
    with fused_adam():
        OptimizerConfig(**{name: getattr(args, name) for name in names})


def run_schedule(config: Any, micro_batches: int, args: Any) -> None:
    """Megatron's interleaved schedule, up to the first question to the model."""
    import torch
    from megatron.core.pipeline_parallel import schedules

    class Chunk(torch.nn.Module):
        @property
        def model_type(self) -> None:
            raise ReachedModelError

    chunks = []
    for _ in range(config.virtual_pipeline_model_parallel_size):
        chunk = Chunk()
        chunk.config = config
        chunks.append(chunk)
    zeros = torch.zeros
    torch.zeros = lambda *sizes, device=None, **rest: zeros(*sizes, device="cpu", **rest)
    try:
        schedules.forward_backward_pipelining_with_interleaving(
            forward_step_func=None,
            data_iterator=[None] * len(chunks),
            model=chunks,
            num_microbatches=micro_batches,
            seq_length=args.seq_length,
            micro_batch_size=args.micro_batch_size,
            forward_only=True,
        )
    except ReachedModelError:
        return
    finally:
        torch.zeros = zeros


def degrees_of(args: Any) -> dict[str, Any]:
    names = (
        *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
        *("virtual_pipeline_model_parallel_size", "hierarchical_context_parallel_sizes"),
        *("expert_model_parallel_size", "expert_tensor_parallel_size"),
        "num_distributed_optimizer_instances",
    )
    return {
        **{name: getattr(args, name) for name in names},
        "gtp_remat_size": args.gtp_weight_remat_size,
        "expert_gtp_remat_size": args.expert_gtp_weight_remat_size,
        "order": "tp-cp-ep-pp-dp" if args.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp",
    }


def stages(case: Start, report: dict[str, Any], enter: Callable[[str], None]) -> None:
    """Go through all stages; whatever one of them raises ends the start."""
    from megatron.core import num_microbatches_calculator as calculator
    from megatron.training import arguments
    from megatron.training.argument_utils import core_transformer_config_from_args

    set_machine(case)
    enter("parse_args")
    sys.argv = ["pretrain_gpt.py", *case.words]
    args = arguments.parse_args()
    enter("validate_args")
    args = arguments.validate_args(args, {}) or args
    enter("transformer_config")
    config = core_transformer_config_from_args(args)
    enter("optimizer_config")
    optimizer_config(args)
    enter("micro_batches")
    calculator.unset_num_microbatches_calculator()
    calculator.init_num_microbatches_calculator(
        args.rank,
        args.rampup_batch_size,
        args.global_batch_size,
        args.micro_batch_size,
        args.data_parallel_size * args.gtp_weight_remat_size,
        decrease_batch_size_if_needed=args.decrease_batch_size_if_needed,
        step_batch_size_schedule=args.step_batch_size_schedule,
        seq_length=args.seq_length,
    )
    micro_batches = calculator.get_num_microbatches()
    enter("process_groups")
    with process_groups(args.world_size, **degrees_of(args)) as groups:
        report.update(
            dp=groups.get_data_parallel_world_size(),
            tp=groups.get_tensor_model_parallel_world_size(),
            pp=groups.get_pipeline_model_parallel_world_size(),
            cp=groups.get_context_parallel_world_size(),
            ep=groups.get_expert_model_parallel_world_size(),
            etp=groups.get_expert_tensor_parallel_world_size(),
            cut=groups.get_gtp_weight_remat_global_ranks(),
            experts_cut=groups.get_expert_gtp_weight_remat_global_ranks(),
        )
        if case.counts:
            enter("model")
            report.update(model_of(args, config))
            return
        if args.use_megatron_fsdp:
            enter("fully_sharded_mesh")
            fully_sharded_mesh(groups, args)
        enter("schedule")
        if config.virtual_pipeline_model_parallel_size is not None:
            run_schedule(config, micro_batches, args)
    enter("done")
    layout = config.pipeline_model_parallel_layout
    layers = layout and [count_decoders(chunk) for stage in layout.layout for chunk in stage]
    report.update(
        vpp=config.virtual_pipeline_model_parallel_size or 1,
        sequence_parallel=config.sequence_parallel,
        micro_batch=args.micro_batch_size,
        num_micro_batches=micro_batches,
        global_batch=args.global_batch_size,
        seq_len=args.seq_length,
        zero_stage=zero_stage(args),
        dp_replicate=args.num_distributed_optimizer_instances,
        layers=layers,
    )


def model_of(args: Any, config: Any) -> dict[str, Any]:
    """Parameters of the whole model, its vocabulary as given, and what its layers do."""
    import torch
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.hybrid.hybrid_model import HybridModel
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

    get_cuda_rng_tracker().fork = lambda *_: nullcontext()

    config.perform_initialization = config.gradient_accumulation_fusion = False
    config.use_cpu_initialization, config.persist_layer_norm = True, False
    if args.hybrid_layer_pattern:
        kind, own = HybridModel, {"hybrid_stack_spec": hybrid_layers(config)}
        own["hybrid_layer_pattern"] = args.hybrid_layer_pattern
    else:
        kind, own = GPTModel, {"transformer_layer_spec": gpt_layers(args, config)}
    with torch.device("meta"):
        model = kind(
            config=config,
            **own,
            vocab_size=args.vocab_size,
            max_sequence_length=args.max_position_embeddings,
            share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
            position_embedding_type=args.position_embedding_type,
        )
    return {
        "params": sum(tensor.numel() for _, tensor in counted_tensors(model)),
        "layer_params": [
            sum(tensor.numel() for _, tensor in counted_tensors(layer))
            for layer in model.decoder.layers
        ],
        "activation": config.activation_func.__name__,
        **{name: getattr(config, name) for name in LAYER_FIELDS.split()},
    }


def gpt_layers(args: Any, config: Any) -> Any:
    """The layers of pretrain_gpt.py of Megatron-Core's own linear classes."""
    from megatron.core.models.gpt.experimental_attention_variant_module_specs import (
        get_linear_attention_pattern,
    )
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec

    linear = get_linear_attention_pattern(config)
    config.experimental_attention_variant = None  # asked for Transformer Engine's classes
    spec = get_gpt_decoder_block_spec(
        config, use_transformer_engine=False, normalization=config.normalization
    )
    if args.multi_latent_attention:
        use_engine_stand_ins(spec)
    spec.layer_specs = list(map(deepcopy, spec.layer_specs))
    for layer, is_linear in zip(spec.layer_specs, linear, strict=True):
        if is_linear:
            layer.submodules.self_attention = delta_net()
        elif args.spec:
            # What Bridge's function puts in place of the norms of a head.
            from bridge_start import reach_bridge

            reach_bridge()
            norms = import_module(args.spec[0])
            attention = layer.submodules.self_attention.submodules
            attention.q_layernorm, attention.k_layernorm = norms.FullDimQNorm, norms.FullDimKNorm
    return spec


def delta_net() -> Any:
    from megatron.core.ssm.gated_delta_net import (
        GatedDeltaNet,
        GatedDeltaNetSubmodules,
        common,
        gdn,
    )
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    common.HAVE_FLA = gdn.chunk_gated_delta_rule = True
    parts = GatedDeltaNetSubmodules(
        in_proj=ColumnParallelLinear, out_norm=WrappedTorchNorm, out_proj=RowParallelLinear
    )
    return ModuleSpec(module=GatedDeltaNet, submodules=parts)


def hybrid_layers(config: Any) -> Any:
    """hybrid_stack_spec of Megatron-Core's own linear classes, norms apart from them."""
    import torch
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.hybrid import hybrid_block
    from megatron.core.models.hybrid.hybrid_layer_specs import hybrid_stack_spec as spec
    from megatron.core.ssm import mamba_mixer
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.moe import moe_layer
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    class GatedNorm(torch.nn.Module):
        def __init__(self, size: int, **_: Any) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(size))

    mamba_mixer.HAVE_MAMBA_SSM, mamba_mixer.ExtendedRMSNorm = True, GatedNorm
    hybrid_block.TENorm = WrappedTorchNorm
    moe_layer.HAVE_TE, moe_layer.TELinear = True, engine_stand_ins()[0]
    own = spec.submodules
    mamba = own.mamba_layer.submodules
    mamba.norm = WrappedTorchNorm
    mamba.mixer.submodules.in_proj = ColumnParallelLinear
    mamba.mixer.submodules.out_proj = RowParallelLinear
    for layer, experts in ((own.mlp_layer, None), (own.moe_layer, config.num_moe_experts)):
        local = get_gpt_layer_local_spec(experts, normalization=config.normalization).submodules
        layer.submodules.pre_mlp_layernorm = local.pre_mlp_layernorm
        layer.submodules.mlp = local.mlp
    own.attention_layer.submodules.input_layernorm = local.input_layernorm
    own.attention_layer.submodules.self_attention = local.self_attention
    return spec


LAYER_FIELDS = """
gated_linear_unit glu_linear_offset activation_func_clamp_value normalization qk_layernorm
softmax_type window_size moe_router_score_function moe_router_pre_softmax
moe_router_enable_expert_bias moe_router_num_groups moe_router_group_topk
moe_router_topk_scaling_factor attention_output_gate moe_shared_expert_gate
"""


def zero_stage(args: Any) -> int:
    """The stage of Megatron-FSDP's strategy; else 1 for either distributed optimizer."""
    if args.use_megatron_fsdp:
        names = ("no_shard", "optim", "optim_grads", "optim_grads_params")
        return names.index(args.data_parallel_sharding_strategy)
    return int(args.use_distributed_optimizer or args.use_layer_wise_distributed_optimizer)


def fully_sharded_mesh(groups: Any, args: Any) -> None:
    """The mesh Megatron-FSDP makes of its groups when it wraps the model."""
    from megatron.core.distributed.fsdp import mcore_fsdp_adapter as adapter

    tp, partial = groups.get_tensor_model_parallel_group(), args.num_distributed_optimizer_instances
    if partial > 1:
        inner = groups.get_data_parallel_group(
            with_context_parallel=True, partial_data_parallel=True
        )
        outer = groups.get_inter_distributed_optimizer_instance_group()
        adapter._get_hsdp_tp_mesh(outer, inner, tp)
        return
    adapter._get_dp_tp_mesh(groups.get_data_parallel_group(with_context_parallel=True), tp)
    if args.num_experts:
        experts = groups.get_expert_data_parallel_group()
        ep = groups.get_expert_model_parallel_world_size()
        adapter._get_dp_tp_mesh(experts, groups.get_expert_tensor_parallel_group(), ep_size=ep)


def count_decoders(chunk: list[Any]) -> int:
    """Transformer layers of a chunk of Megatron's layout."""
    return sum(layer.name == "decoder" for layer in chunk)


def remember_docstrings() -> None:
    """The help of options comes from the source of classes, which every start would parse anew."""
    from megatron.training.argument_utils import ArgumentGroupFactory

    read = ArgumentGroupFactory._get_field_docstrings
    known: dict[type, dict[str, str]] = {}

    def remembered(factory: Any, of: type) -> dict[str, str]:
        if of not in known:
            known[of] = read(factory, of)
        return dict(known[of])

    ArgumentGroupFactory._get_field_docstrings = remembered


def import_megatron(megatron: Path) -> None:
    prepare(megatron)
    pretend_transformer_engine()
    remember_docstrings()


if __name__ == "__main__":
    serve_starts(Start, stages, import_megatron)
