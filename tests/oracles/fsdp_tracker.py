"""Peak memory of one FSDP2 rank, tensor by tensor, as torch's own tracker sees it without a GPU.

A program: it answers every JSON line it reads (the fields of ``TrackerCase`` in
test_fsdp_memory.py) with one JSON line. Accelerate's and torchtitan's own functions wrap the
model; its tensors are fake and its process group of 8 ranks is fake, so a step of a model of any
size takes seconds and little memory.

What differs from training on a GPU:

- The tensors' device is the CPU. Where its kernels keep other tensors than those of a GPU they
  are replaced: RMSNorm (torchtitan) by one that keeps its input and one number per row, as the
  fused kernel does; flex attention by ``scaled_dot_product_attention``, which keeps the same
  five tensors; Hugging Face's causal mask by none, as ``sdpa`` without padding runs.
- Frees count at once: streams, caching and fragmentation are the allocator's, not the tensors'.
- torchtitan's CUDA graphs and ``torch.compile`` are off.
"""

import dataclasses
import gc
import types
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from starts import serve
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.common_utils import get_untyped_storages
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker, _FSDPRefType, _FSDPState
from torch.distributed._tools.mod_tracker import ModTracker
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchtitan_start import stub_kernels

SHARDS = 8
STEPS = 3
"""Adam's states appear in the first, the second gives the peak, the third what is alive then."""

Announce = Callable[[str], None]  # Takes the name of the phase that begins
Step = Callable[[Announce], None]  # Forward and backward of all micro-batches


class ModuleNames(ModTracker):
    """Sets no hooks on leaf tensors: those would keep the tensors alive for ever."""

    def _fw_pre_hook(self, mod: nn.Module, inputs: Any) -> None:
        super()._fw_pre_hook(mod, [x for x in inputs if not getattr(x, "is_leaf", False)])


class PeakTracker(FSDPMemTracker):
    """FSDPMemTracker that names tensors and leaves the hooks of fully_shard as they are.

    Torch's class replaces those hooks module by module, which splits a group such as
    ``[norm, lm_head]`` into two that gather and reduce twice. Here only a group's own methods
    are wrapped, to say which tensors are gathered weights and which are gradients.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(model, optimizer)
        self._mod_tracker = ModuleNames()
        self._op = "made before"
        self._wrapped: list[Any] = []
        self.phase = "start"
        self.peak_by_moment: Counter[str] = Counter()
        self.wanted_bytes = 0
        self.alive: list[tuple[str, str, int]] = []
        """Class, origin and bytes of every tensor when wanted_bytes were reached."""
        self.peak_moment = ""

    @property
    def peak_bytes(self) -> int:
        return max(self.peak_by_moment.values(), default=0)

    def start_step(self, wanted_bytes: int) -> None:
        self.wanted_bytes = wanted_bytes
        self.memory_tracking.clear()
        self.peak_by_moment.clear()

    def announce(self, phase: str) -> None:
        self.phase = phase

    def _moment(self) -> str:
        modules = sorted(self._mod_tracker.parents - {"Global"}, key=len)
        return f"{self.phase} {modules[-1] if modules else ''}".strip()

    def _name(self, tensor: torch.Tensor) -> None:
        for storage in get_untyped_storages(tensor):
            known, _ = self._WINFO.get(storage, (None, None))
            if known is not None and not hasattr(known, "label"):
                kind = str(tensor.dtype).removeprefix("torch.")
                known.label = f"{self._op} {kind} in {self._moment()}"

    def _track(self, reftype: Any, t: torch.Tensor) -> None:
        super()._track(reftype, t)
        self._name(t)

    def _update_and_maybe_create_winfos(
        self, t: torch.Tensor, reftype: Any, update_existing: bool = False
    ) -> Any:
        found = super()._update_and_maybe_create_winfos(t, reftype, update_existing)
        self._name(t)
        return found

    def _update_peak_stats(self, peak_state: Any) -> None:
        moment = self._moment()
        total = sum(devices["Total"] for devices in self._curr_mem_snap.values())
        self.peak_by_moment[moment] = max(self.peak_by_moment[moment], total)
        if self.wanted_bytes and total >= self.wanted_bytes and not self.alive:
            self.peak_moment = f"{moment}: {self._op}"
            infos = [info for info, _ in self._WINFO.values() if info.mem_consumed]
            self.alive = [(w.reftype.value, w.label, w.mem_consumed) for w in infos]

    def _groups(self) -> Iterator[Any]:
        states = (
            module._get_fsdp_state()
            for module in self._root_mod.modules()
            if isinstance(module, FSDPModule)
        )
        groups = {id(group): group for state in states for group in state._fsdp_param_groups}
        yield from groups.values()

    def _instrument_fsdp_module(self) -> None:
        self._fsdp_state = _FSDPState.PRE_FW
        for group in self._groups():
            self._instrument_fsdp_sharded_params_grads(group)
            self._wrap_unshard(group)
            self._wrap_post_backward(group)
            self._wrapped.append(group)
        for buffer in self._root_mod.buffers():
            self._update_and_maybe_create_winfos(buffer, _FSDPRefType.BUFFER)

    def _wrap_unshard(self, group: Any) -> None:
        inner = group.wait_for_unshard

        def wait_for_unshard() -> None:
            inner()
            for param in group.fsdp_params:
                whole = param.unsharded_param
                self._update_and_maybe_create_winfos(whole, _FSDPRefType.UNSHARDED_PARAM)

        group.wait_for_unshard = wait_for_unshard

    def _wrap_post_backward(self, group: Any) -> None:
        inner = group.post_backward

        def classify(params: list[Any], reftype: Any) -> None:
            for param in params:
                if param is not None and param.grad is not None:
                    self._update_and_maybe_create_winfos(param.grad, reftype)

        def post_backward(*unused: Any) -> None:
            whole = [getattr(param, "_unsharded_param", None) for param in group.fsdp_params]
            classify(whole, _FSDPRefType.UNSHARDED_GRAD)
            self._fsdp_state = _FSDPState.POST_BW
            inner(*unused)
            self._fsdp_state = _FSDPState.PRE_BW
            shards = [param.sharded_param for param in group.fsdp_params]
            classify(shards, _FSDPRefType.SHARDED_GRAD)

        group.post_backward = post_backward

    def _deregister_module_and_optimizer_hooks(self) -> None:
        for group in self._wrapped:
            del group.wait_for_unshard, group.post_backward
        self._wrapped.clear()
        for handle in self._optimizer_hook_handles or ():
            handle.remove()
        self._optimizer_hook_handles = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outer, self._op = self._op, str(func).removeprefix("aten.").partition(".")[0]
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            self._op = outer


def build_accelerate(case: Any, mesh: DeviceMesh) -> tuple[nn.Module, torch.Tensor, Step]:
    """Hugging Face's Llama wrapped by Accelerate's FSDP2 functions; model, input, step.

    For ``torch`` blocks are units, and one holds all else: embedding, final norm and head.
    Gradients of all but the last micro-batch stay whole, as under ``Accelerator.accumulate``.
    """
    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.utils import fsdp2_apply_ac, fsdp2_prepare_model
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama import modeling_llama

    modeling_llama.create_causal_mask = lambda **_: None
    model: Any = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=case.hidden,
            intermediate_size=case.ffn,
            num_hidden_layers=case.layers,
            num_attention_heads=case.heads,
            num_key_value_heads=case.kv_heads,
            vocab_size=case.vocab,
            max_position_embeddings=case.seq_len,
            tie_word_embeddings=False,
            use_cache=False,
            attn_implementation="sdpa",
        )
    )
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
        reshard_after_forward=True,
        cpu_ram_efficient_loading=False,
    )
    plugin.set_mixed_precision("bf16")
    accelerator = types.SimpleNamespace(
        state=types.SimpleNamespace(fsdp_plugin=plugin),
        torch_device_mesh={("fsdp",): mesh},
        parallelism_config=types.SimpleNamespace(fsdp_dim_names=("fsdp",)),
        mixed_precision="bf16",
        is_main_process=False,
    )
    if case.recompute == "full":
        model = fsdp2_apply_ac(accelerator, model)
    if case.framework == "torch":
        for unit in (*model.model.layers, model):
            fully_shard(unit, mesh=mesh, mp_policy=plugin.mixed_precision_policy)
    else:
        model = fsdp2_prepare_model(accelerator, model)
    tokens = torch.randint(0, case.vocab, (case.micro_batch, case.seq_len))

    def step(announce: Announce) -> None:
        for left in reversed(range(case.num_micro_batches)):
            model.set_requires_gradient_sync(left == 0)
            announce("forward")
            loss = model(input_ids=tokens, labels=tokens).loss
            announce("backward")
            loss.backward()

    return model, tokens, step


class FusedNorm(torch.autograd.Function):
    """RMSNorm that keeps what the GPU's fused kernel keeps: input and one number per row."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> Any:
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


def checkpointing(recompute: str) -> Any:
    """torchtitan's configuration of a policy; the CPU's flash attention counts as attention."""
    from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC

    class SelectiveOnCpu(SelectiveAC):
        @dataclasses.dataclass(kw_only=True, slots=True)
        class Config(SelectiveAC.Config):
            pass

        def get_save_ops(self) -> Any:
            flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
            return super().get_save_ops() | {flash}

    if recompute == "none":
        return None
    return {"full": FullAC, "selective": SelectiveOnCpu}[recompute].Config()


def titan_config(case: Any) -> Any:
    """torchtitan's 8B configuration with the case's sizes."""
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3 import _build_llama3_layers, llama3_configs

    config: Any = llama3_configs["8B"](attn_backend="flex")
    rope = config.layers[0].attention.rope
    config.dim, config.vocab_size = case.hidden, case.vocab
    config.norm = dataclasses.replace(config.norm, normalized_shape=case.hidden)
    config.tok_embeddings = dataclasses.replace(
        config.tok_embeddings, num_embeddings=case.vocab, embedding_dim=case.hidden
    )
    config.lm_head = dataclasses.replace(
        config.lm_head, in_features=case.hidden, out_features=case.vocab
    )
    config.layers = _build_llama3_layers(
        n_layers=case.layers,
        dim=case.hidden,
        n_heads=case.heads,
        n_kv_heads=case.kv_heads,
        hidden_dim=case.ffn,
        rope=dataclasses.replace(rope, dim=case.hidden // case.heads, max_seq_len=case.seq_len),
        attn_backend="flex",
    )
    for layer in config.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return config


def build_torchtitan(case: Any, dims: Any) -> tuple[nn.Module, torch.Tensor, Step]:
    """torchtitan's Llama 3 with its own wrapping and loss; model, input, step."""
    from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
    from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
    from torchtitan.models.llama3.parallelize import parallelize_llama

    model: Any = parallelize_llama(
        titan_config(case).build(),
        parallel_dims=dims,
        training=TrainingConfig(seq_len=case.seq_len),
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor"),
        compile_config=CompileConfig(),
        ac_config=checkpointing(case.recompute),
        dump_folder="",
    )
    whole = CrossEntropyLoss.Config(global_vocab_size=case.vocab)
    chosen = ChunkedLossWrapper.Config(loss_fn=whole) if case.chunked_loss else whole
    loss_of: Any = chosen.build(compile_config=None)
    if case.chunked_loss:
        loss_of.set_lm_head(model.lm_head)
        model._skip_lm_head = True
    tokens = torch.randint(0, case.vocab, (case.micro_batch, case.seq_len))
    valid = torch.tensor(float(tokens.numel()))

    def step(announce: Announce) -> None:
        for _ in range(case.num_micro_batches):
            announce("forward")
            logits = model(tokens)
            announce("loss")
            loss, _ = loss_of(logits, tokens, valid)
            del logits
            announce("backward")
            loss.backward()

    return model, tokens, step


Builder = Callable[[Any], tuple[nn.Module, torch.Tensor, Step]]


def tracked_steps(case: Any, build: Builder) -> PeakTracker:
    """Run the steps under the tracker; what it holds afterwards is of the last one."""
    with FakeTensorMode():
        model, tokens, step = build(case)
        how = {"foreach": True} if case.foreach else {"fused": True}
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **how)
        tracker = PeakTracker(model, optimizer)
        tracker.track_inputs((tokens,))
        with tracker:
            for number in range(STEPS):
                tracker.start_step(tracker.peak_bytes if number == STEPS - 1 else 0)
                step(tracker.announce)
                tracker.announce("optimizer")
                gc.collect()
                optimizer.step()
                optimizer.zero_grad()
    return tracker


def answer(case: Any, build: Builder) -> dict[str, Any]:
    """Peak of a step once Adam has its states, and what is alive at that moment.

    ``peak_bytes``; ``moment``: phase, module and operation; ``by_kind``: bytes by the tracker's
    classes; ``tensors``: by class and origin; ``moments``: the highest total in every module.
    """
    tracker = tracked_steps(case, build)
    tensors: dict[str, Counter[str]] = {}
    for kind, origin, num_bytes in tracker.alive:
        tensors.setdefault(kind, Counter())[origin] += num_bytes
    return {
        "peak_bytes": tracker.peak_bytes,
        "moment": tracker.peak_moment,
        "by_kind": {kind: found.total() for kind, found in tensors.items()},
        "tensors": {kind: dict(found.most_common()) for kind, found in tensors.items()},
        "moments": dict(tracker.peak_by_moment.most_common()),
    }


@cache
def builders() -> dict[str, Builder]:
    """The builder of each framework's model inside a fake process group of 8 ranks."""
    stub_kernels()
    from torchtitan.distributed import ParallelDims, parallel_dims
    from torchtitan.distributed.utils import set_spmd_backend

    nn.functional.rms_norm = lambda x, shape, weight=None, eps=None: FusedNorm.apply(x, weight)
    parallel_dims.device_type = "cpu"
    dist.init_process_group("fake", rank=0, world_size=SHARDS, store=FakeStore())
    set_spmd_backend("partial_dtensor")
    dims = ParallelDims(
        dp_replicate=1,
        dp_shard=SHARDS,
        cp=1,
        tp=1,
        pp=1,
        ep=1,
        world_size=SHARDS,
        spmd_backend="partial_dtensor",
    )
    dims.build_mesh()
    mesh = init_device_mesh("cpu", (SHARDS,))
    return {
        **dict.fromkeys(("accelerate", "torch"), lambda case: build_accelerate(case, mesh)),
        "torchtitan": lambda case: build_torchtitan(case, dims),
    }


if __name__ == "__main__":
    serve(
        lambda given: answer(types.SimpleNamespace(**given), builders()[given["framework"]]),
        builders,
    )
