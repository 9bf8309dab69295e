"""Tensors that autograd keeps for backward, recorded on a CPU with saved-tensor hooks.

A storage counts once, however many operations keep views of it. Parameters, buffers and what the
caller excludes (masks, rotary tables) are no activations.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

MICRO_BATCH = 2
SEQ_LEN = 48
NUM_TOKENS = MICRO_BATCH * SEQ_LEN
HIDDEN = 320
NUM_HEADS = 8
NUM_KV_HEADS = 4
HEAD_DIM = 24  # Eight heads of 24 are not ``HIDDEN``: every width has a size of its own
FFN = 448
EXPERT_FFN = 352
NUM_EXPERTS = 8
TOP_K = 3
RANK = 12  # of adapters
QUERY_RANK = 104
KV_RANK = 72
ROPE_DIM = 8
VOCAB = 1024
HF_SHAPE = {
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_attention_heads": NUM_HEADS,
    "num_key_value_heads": NUM_KV_HEADS,
}
# A Llama block by the planner's names.
BLOCK: dict[str, Any] = {
    "name": "block",
    "num_layers": 1,
    "hidden_size": HIDDEN,
    "num_heads": NUM_HEADS,
    "num_kv_heads": NUM_KV_HEADS,
    "head_dim": HEAD_DIM,
    "ffn_size": FFN,
    "gated_mlp": True,
    "norm": "rmsnorm",
    "vocab_size": VOCAB,
    "max_seq_len": SEQ_LEN,
}
# Blocks of torchtitan, how they run, and whether they are checkpointed by operation.
TITAN = (
    *(("fused", way, "") for way in ("unfused_norms", "eager", "compiled", "eager_tp4")),
    *((kind, way, "") for kind in ("normed", "latent_query") for way in ("eager", "compiled")),
    *(("mixture", "compiled", ""), ("latent_mixture", "eager", "")),
    *(
        (kind, way, "selective")
        for kind in ("fused", "separate", "mixture", "latent", "latent_query", "latent_mixture")
        for way in ("eager", "compiled", "eager_tp4", "compiled_tp4", "eager_ep", "compiled_ep")
        if ("ep" not in way or "mixture" in kind)
        and not ("4" in way and kind in ("separate", "latent"))
    ),
)


@dataclass(kw_only=True)
class SavedStorage:
    """One storage kept for backward."""

    part: str  # ``attention`` before the block's second norm, ``mlp`` from it on; empty if unknown
    module: str
    operation: str  # of the first operation that kept it
    shape: list[int]
    dtype: str
    element_bytes: int
    num_bytes: int

    @property
    def num_elements(self) -> int:
        return self.num_bytes // self.element_bytes


@contextmanager
def module_path(module: torch.nn.Module) -> Iterator[list[str]]:
    """Names of the submodules at work, outermost first."""
    path: list[str] = []

    def enter(name: str) -> Callable[..., None]:
        return lambda *_: path.append(name)

    def leave(*_: object) -> None:
        path.pop()

    with ExitStack() as hooks:
        for name, part in module.named_modules():
            hooks.callback(part.register_forward_pre_hook(enter(name)).remove)
            hooks.callback(part.register_forward_hook(leave, always_call=True).remove)
        yield path


@contextmanager
def operation_name() -> Iterator[list[str]]:
    """Name of the torch function at work, as the last entry."""
    from torch.overrides import TorchFunctionMode, resolve_name

    names = [""]

    class Names(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            names.append((resolve_name(func) or "").rpartition(".")[2])
            try:
                return func(*args, **(kwargs or {}))
            finally:
                names.pop()

    with Names():
        yield names


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def storage_of(
    tensor: torch.Tensor, *, operation: str, part: str = "", module: str = ""
) -> SavedStorage:
    return SavedStorage(
        part=part,
        module=module,
        operation=operation,
        shape=list(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        element_bytes=tensor.element_size(),
        num_bytes=tensor.untyped_storage().nbytes(),
    )


def record(
    forward: Callable[[], object],
    module: torch.nn.Module,
    *,
    excluded: Iterable[torch.Tensor] = (),
    second_norm: str = "",
    compiled: bool = False,
) -> list[SavedStorage]:
    """Run ``forward`` and list what it keeps; a compiled one is not asked which module does."""
    import torch

    others = {_storage(t) for t in (*module.parameters(), *module.buffers(), *excluded)}
    found: dict[int, SavedStorage] = {}
    alive: list[torch.Tensor] = []
    part = "attention" if second_norm else ""

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal part
        where = path[-1] if path else ""
        part = "mlp" if second_norm and where == second_norm else part
        if _storage(tensor) not in others | set(found):
            alive.append(tensor)
            found[_storage(tensor)] = storage_of(
                tensor, part=part, module=where, operation=names[-1]
            )
        return tensor

    with ExitStack() as stack:
        path = [] if compiled else stack.enter_context(module_path(module))
        names = [""] if compiled else stack.enter_context(operation_name())
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t))
        output = forward()
    del output
    return list(found.values())


def kept_by_selective(forward: Callable[[], object], x: torch.Tensor) -> list[SavedStorage]:
    """What a block keeps under selective checkpointing: torch's cache, and the input."""
    import torch
    from torch.utils import checkpoint
    from torch.utils._pytree import tree_leaves

    caches: list[dict[Any, dict[int, Any]]] = []

    class Caching(checkpoint._CachingTorchDispatchMode):
        def __init__(self, policy: Any, storage: Any, *more: Any) -> None:
            super().__init__(policy, storage, *more)
            caches.append(storage)

    original, checkpoint._CachingTorchDispatchMode = checkpoint._CachingTorchDispatchMode, Caching
    try:
        output = forward()
    finally:
        checkpoint._CachingTorchDispatchMode = original
    del output
    kept = [("input", x)]
    for cache in caches:
        for key, calls in cache.items():
            kept += [
                (str(key), getattr(each, "val", each)) for each in tree_leaves([*calls.values()])
            ]
    local = [(name, getattr(each, "_local_tensor", each)) for name, each in kept]
    tensors = (pair for pair in local if isinstance(pair[1], torch.Tensor))
    return [storage_of(each, operation=name) for name, each in tensors]


@contextmanager
def cuda_dropout() -> Iterator[None]:
    """Dropout as on CUDA: a kernel that keeps a one-byte mask (a CPU keeps 16-bit noise)."""
    import torch

    original = torch.nn.functional.dropout

    def dropout(
        x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> torch.Tensor:
        return torch.native_dropout(x, p, training)[0] if training and p > 0 else x

    torch.nn.functional.dropout = dropout
    try:
        yield
    finally:
        torch.nn.functional.dropout = original


@contextmanager
def cuda_rms_norm() -> Iterator[None]:
    """RMSNorm as on CUDA: one operation with autograd's own formula for it.

    A CPU lacks the kernel and runs the norm as separate operations. With some kernel registered
    autograd takes the same formula as on a GPU, and that decides what is kept.
    """
    import torch

    def fused_rms_norm(
        x: torch.Tensor, shape: list[int], weight: torch.Tensor, eps: float | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + (eps or 1e-6))
        return (wide * scale * weight).to(x.dtype), scale

    library = torch.library.Library("aten", "IMPL")
    library.impl("_fused_rms_norm", fused_rms_norm, "CPU")
    try:
        yield
    finally:
        library._destroy()


def peak_bytes_per_logit(
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], *, num_logits: int = VOCAB
) -> float:
    """Most bytes alive at once from logits to their gradient, over the number of logits.

    Only tensors as large as the logits count. The logits are not held by the caller.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    alive: dict[int, int] = {}
    peak = 0

    class Alive(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal peak
            result = func(*args, **(kwargs or {}))
            for tensor in tree_leaves(result):
                if isinstance(tensor, torch.Tensor) and tensor.numel() == NUM_TOKENS * num_logits:
                    storage = tensor.untyped_storage()
                    if storage._cdata not in alive:
                        alive[storage._cdata] = storage.nbytes()
                        weakref.finalize(storage, alive.pop, storage._cdata)
            peak = max(peak, sum(alive.values()))
            return result

    weight = torch.nn.Parameter(torch.randn(num_logits, 8, dtype=torch.bfloat16))
    hidden = torch.randn(MICRO_BATCH, SEQ_LEN, 8, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(0, num_logits, (MICRO_BATCH, SEQ_LEN))
    with Alive():
        loss(torch.nn.functional.linear(hidden, weight), labels).backward()
    return peak / (NUM_TOKENS * num_logits)


def randomise(module: torch.nn.Module) -> torch.nn.Module:
    """The module in bf16 with small random parameters."""
    import torch

    module = module.to(torch.bfloat16)
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    return module.train()


def hidden_states(*shape: int) -> torch.Tensor:
    """A block's input, which needs a gradient."""
    import torch

    return torch.randn(*shape, dtype=torch.bfloat16, requires_grad=True)


Blocks = dict[str, Callable[[], list[SavedStorage]]]
Losses = dict[str, Callable[[], float]]


def answer(blocks: Blocks, losses: Losses) -> None:
    """Print what every block keeps and the peak of every loss as one JSON line."""
    import torch

    torch.manual_seed(0)
    found = {
        "blocks": {name: [asdict(item) for item in make()] for name, make in blocks.items()},
        "losses": {name: make() for name, make in losses.items()},
    }
    sys.stdout.write(json.dumps(found) + "\n")


@dataclass(kw_only=True)
class Measured:
    """What a program of this folder measured."""

    blocks: dict[str, list[SavedStorage]]
    losses: dict[str, float]


def ask(program: str, *arguments: str) -> Measured:
    """Run a program of this folder: each library patches torch in a process of its own."""
    path = Path(__file__).with_name(program)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", path, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{program} failed:\n{done.stderr[-4000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    blocks = {
        name: [SavedStorage(**item) for item in items] for name, items in found["blocks"].items()
    }
    assert all(math.isfinite(peak) for peak in found["losses"].values())
    return Measured(blocks=blocks, losses=found["losses"])
