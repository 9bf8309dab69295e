"""Allocated peak of FSDP2 under Accelerate and torchtitan against torch's memory tracker."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import pytest
from contexts import context_of, strategy_of

from planner.cost.estimate import MemoryEstimate, estimate
from planner.frameworks.registry import load_saved_tables, load_traits
from planner.spec.model import ModelSpec
from planner.spec.traits import FrameworkTraits
from planner.units import GIB

WORKER = Path(__file__).with_name("fsdp_tracker.py")
SHARDS = 8
TOLERANCE = 0.02
TITAN_PROFILE = "eager"  # torchtitan without torch.compile: what the tracker runs


@dataclass(frozen=True, kw_only=True)
class TrackerCase:
    """A Llama-like model and how it is trained on each of 8 ranks."""

    framework: str  # ``accelerate`` or ``torchtitan``
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    seq_len: int
    micro_batch: int = 1
    num_micro_batches: int = 1
    recompute: str = "none"
    """``none``, ``full`` or (torchtitan) ``selective``: one policy for all blocks."""
    chunked_loss: bool = False
    """torchtitan's loss over slices of the sequence, which its configurations use."""


class FsdpTracker:
    """A running worker; ask it with :meth:`peak`."""

    def __init__(self, log: IO[str]) -> None:
        self._log = log
        self._known: dict[TrackerCase, dict[str, Any]] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    def peak(self, case: TrackerCase) -> dict[str, Any]:
        """Peak bytes of the case and the tensors alive then; see ``fsdp_tracker.answer``."""
        if case not in self._known:
            self._known[case] = self._traced(case)
        return self._known[case]

    def _traced(self, case: TrackerCase) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(case)) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the tracker ended:\n{Path(self._log.name).read_text()}")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise RuntimeError(found["error"])
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()


def llama_8b(framework: str, **changes: Any) -> TrackerCase:
    """A few layers of Llama 3 8B with its whole vocabulary."""
    sizes: dict[str, Any] = {
        "layers": 2,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 8,
        "ffn": 14336,
        "vocab": 128256,
        "seq_len": 8192,
    }
    return TrackerCase(framework=framework, **{**sizes, **changes})


CASES = {
    "accelerate-loss": llama_8b("accelerate"),
    "accelerate-loss-4-layers": llama_8b("accelerate", layers=4),
    "accelerate-loss-full": llama_8b("accelerate", recompute="full"),
    "accelerate-loss-forward": llama_8b("accelerate", seq_len=2048),
    "accelerate-block-full": llama_8b("accelerate", layers=4, vocab=32000, recompute="full"),
    "torchtitan-loss": llama_8b("torchtitan"),
    "torchtitan-loss-4-layers": llama_8b("torchtitan", layers=4),
    "torchtitan-loss-full": llama_8b("torchtitan", recompute="full"),
    "torchtitan-loss-selective": llama_8b("torchtitan", recompute="selective"),
    "torchtitan-loss-selective-4-layers": llama_8b("torchtitan", layers=4, recompute="selective"),
    "torchtitan-block": llama_8b("torchtitan", layers=4, vocab=32000, seq_len=2048),
    "torchtitan-block-full": llama_8b("torchtitan", layers=4, vocab=32000, recompute="full"),
    "torchtitan-chunked": llama_8b("torchtitan", recompute="selective", chunked_loss=True),
    "torchtitan-chunked-4-layers": llama_8b("torchtitan", layers=4, chunked_loss=True),
}


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FsdpTracker]:
    log: Path = tmp_path_factory.mktemp("fsdp") / "log"
    with log.open("w") as stream:
        worker = FsdpTracker(stream)
        yield worker
        worker.close()


def model_of(case: TrackerCase) -> ModelSpec:
    return ModelSpec(
        name="llama",
        num_layers=case.layers,
        hidden_size=case.hidden,
        num_heads=case.heads,
        num_kv_heads=case.kv_heads,
        head_dim=case.hidden // case.heads,
        ffn_size=case.ffn,
        gated_mlp=True,
        activation="silu",
        norm="rmsnorm",
        vocab_size=case.vocab,
        max_seq_len=case.seq_len,
    )


def traits_of(case: TrackerCase) -> FrameworkTraits:
    """The framework's own traits; torchtitan's whole loss is the one Hugging Face runs."""
    accelerate = load_traits("accelerate")
    if case.framework == "accelerate":
        return accelerate
    traits = load_traits("torchtitan", TITAN_PROFILE)
    if case.chunked_loss:
        return traits
    loss = accelerate.kernels.loss
    saved = load_saved_tables(traits.kernels.saved.name, loss)
    states = replace(traits.states, collected_head_gradient_bytes=0.0)
    kernels = replace(traits.kernels, loss=loss, saved=saved)
    return replace(traits, kernels=kernels, states=states)


def predicted(case: TrackerCase) -> MemoryEstimate:
    context = context_of(
        model=model_of(case),
        framework=case.framework,
        global_batch=SHARDS * case.micro_batch,
        seq_len=case.seq_len,
    )
    layers = (case.layers,)
    strategy = strategy_of(
        dp=SHARDS,
        zero_stage=3,
        micro_batch=case.micro_batch,
        layers_per_stage=layers,
        selective_layers_per_stage=layers if case.recompute == "selective" else (0,),
        recompute_layers_per_stage=layers if case.recompute == "full" else (0,),
    )
    return estimate(replace(context, traits=traits_of(case)), strategy).memory


def as_text(found: dict[str, Any], memory: MemoryEstimate, tensor_bytes: float) -> str:
    """Both sides item by item, for the reader of a failure."""
    lines = [
        f"tracker {found['peak_bytes'] / GIB:.3f} GiB, {found['moment']}",
        *(f"  {size / GIB:8.3f} {kind}" for kind, size in found["by_kind"].items()),
        f"planner {tensor_bytes / GIB:.3f} GiB, {memory.moment}",
        *(
            f"  {size / GIB:8.3f} {name}"
            for name, size in memory.items.items()
            if not name.startswith("overhead.")
        ),
    ]
    return "\n".join(lines)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_allocated_peak(case: TrackerCase, tracker: FsdpTracker) -> None:
    found = tracker.peak(case)
    memory = predicted(case)
    tensor_bytes = memory.allocated_bytes - memory.items.get("workspaces", 0.0)
    error = tensor_bytes / found["peak_bytes"] - 1.0
    assert abs(error) <= TOLERANCE, f"{error:+.1%}\n{as_text(found, memory, tensor_bytes)}"


def test_tensors_alive_sum_to_the_peak(tracker: FsdpTracker) -> None:
    found = tracker.peak(CASES["torchtitan-loss"])
    listed = sum(size for tensors in found["tensors"].values() for size in tensors.values())
    assert listed == sum(found["by_kind"].values()) == found["peak_bytes"]
    assert found["peak_bytes"] == max(found["moments"].values())


def test_a_layer_costs_the_same_wherever_the_peak_is_the_loss(tracker: FsdpTracker) -> None:
    # What a layer adds: 12/8 bytes per parameter, and per token
    # norms 8h, q k v 2(h + 2 kv), attention out 2h, its log-sum-exp 4a, MLP 8f, row norms 8;
    # a table of rotations, and Adam's step counters of its 7 tensors.
    two, four = (
        tracker.peak(CASES[name])["peak_bytes"]
        for name in ("torchtitan-loss", "torchtitan-loss-4-layers")
    )
    hidden, kv, heads, ffn, tokens = 4096, 1024, 32, 14336, 8192
    params = 2 * hidden * (hidden + kv) + 3 * hidden * ffn + 2 * hidden
    saved = 12 * hidden + 4 * kv + 4 * heads + 8 * ffn + 8
    rope_table = 8 * tokens * (hidden // heads) // 2
    assert four - two == 2 * (params * 12 // 8 + saved * tokens + rope_table + 7 * 4)
