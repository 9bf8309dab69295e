"""The layouts of the reality check: how each is trained, and what the planner says of it.

The planner is asked as a user asks it: :func:`planner.plan` on a cluster file, with the layout
fixed, a profile of the framework that trains, and ``--set`` for what the training program does.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from starts import free_port, of_ranks, run_worker

import planner
from planner.answers.base import Plan
from planner.answers.execution import FLUSH, execution
from planner.cost.ledger import LedgerItem, stage_ledgers
from planner.cost.stage_model import price
from planner.cost.timeline import timeline

WORKER = Path(__file__).with_name("reality_worker.py")
SIZES = {
    "vocab_size": 1024,
    "hidden_size": 256,
    "num_heads": 4,
    "ffn_size": 768,
    "num_layers": 4,
    "seq_len": 128,
}
NO_CLIPPING = (
    "traits.overheads.step_overhead_s=0",
    "traits.overlap.optimizer_waits_for_all_stages=false",
)
"""The program neither logs nor takes the norm of gradients; DeepSpeed does."""
ONE_CORE = (
    "traits.kernels.waits_for_kernels=true",
    "traits.overlap.communication_multiprocessors=108",
)
"""Of a rank that is a core: it calls kernels and computes them, and sends what it computed."""
Counts = Mapping[str, int]
HEAD = ("transient.head", "transient.loss.log_softmax")
"""What head and loss keep for backward; logits and their gradients live for a moment."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One layout on so many ranks."""

    kind: str  # Who trains: a key of ``KINDS`` in reality_worker.py
    framework: str
    profile: str
    ranks: int = 2
    zero: int = 0
    is_recomputed: bool = False
    micro_batch: int = 4
    num_micro_batches: int = 1
    lasting: tuple[str, ...] = ()
    """Items of the planner's ledger that live from one step to the next."""
    waiting: tuple[str, ...] = ()
    """Those that come in forward and stay until backward, beside activations."""
    stepping: tuple[str, ...] = ()
    """Those that live when the optimizer updates; not compared where none is named."""
    settings: tuple[str, ...] = NO_CLIPPING

    @property
    def fix(self) -> dict[str, object]:
        """The layout in the planner's words."""
        axis = {"tensor": "tp", "pipeline": "pp"}.get(self.kind, "dp")
        degrees = {"dp": 1, "tp": 1, "pp": 1, "vpp": 1, "dp_replicate": 1} | {axis: self.ranks}
        return degrees | {
            "gpus": self.ranks,
            "zero": self.zero,
            "micro_batch": self.micro_batch,
            "sequence_parallel": "false",
            "recompute": "full" if self.is_recomputed else "none",
            "offload": "none",
            "schedule": "1f1b",
        }

    @property
    def global_batch(self) -> int:
        """Sequences of an iteration."""
        replicas = 1 if self.kind in ("tensor", "pipeline") else self.ranks
        return self.micro_batch * self.num_micro_batches * replicas


REPLICATED = Case(
    kind="ddp",
    framework="accelerate",
    profile="ddp",
    lasting=("weights", "optimizer"),
)
FSDP = Case(kind="fsdp", framework="accelerate", profile="current", zero=3, lasting=("optimizer",))
ZERO = Case(
    kind="zero",
    framework="deepspeed",
    profile="current",
    lasting=("weights", "optimizer"),
    stepping=("weights", "optimizer", "gradients"),
    settings=("traits.overheads.step_overhead_s=0",),
)
SPLIT = Case(
    kind="tensor",
    framework="torchtitan",
    profile="plain",
    micro_batch=8,
    lasting=("weights", "optimizer"),
    settings=(),
)
PIPELINE = replace(
    SPLIT,
    kind="pipeline",
    micro_batch=2,
    num_micro_batches=4,
    lasting=("weights", "optimizer", "receive_buffers"),
)
CASES = {
    "DDP": REPLICATED,
    "DDP, recomputed": replace(REPLICATED, is_recomputed=True),
    "FSDP2, ZeRO 2": replace(FSDP, zero=2, waiting=("weights",)),
    "FSDP2, ZeRO 3": FSDP,
    "DeepSpeed ZeRO 1": replace(ZERO, zero=1, stepping=()),
    "DeepSpeed ZeRO 2": replace(ZERO, zero=2),
    "DeepSpeed ZeRO 3": replace(
        ZERO,
        zero=3,
        lasting=("weights", "optimizer", "gradients", "buckets"),
        stepping=("weights", "optimizer", "gradients", "buckets", "step_group"),
        settings=(*ZERO.settings, "traits.overlap.weight_gather_elements=1"),
    ),
    "tensor parallel": SPLIT,
    "tensor parallel, recomputed": replace(SPLIT, is_recomputed=True),
    "1F1B": PIPELINE,
    "1F1B, recomputed": replace(PIPELINE, is_recomputed=True),
}
"""By name, on two ranks."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Of one iteration; bytes of the first rank."""

    step_s: float
    sent_bytes: Counts  # by collective, as nccl-tests counts them
    lasting_bytes: int  # Held from one step to the next
    forward_bytes: int
    """Held when the last forward in flight is through its layers, what they send on not counted;
    under FSDP2, when its loss is there and no gathered weights are."""
    step_bytes: int  # Held when the optimizer updates, where the case says of what
    spread: tuple[float, ...] = field(default=())  # Seconds of all steps, where it was measured


def model_text(sizes: Mapping[str, int]) -> str:
    """The model as the planner reads it."""
    known = {name: value for name, value in sizes.items() if name != "seq_len"}
    return yaml.safe_dump(
        known
        | {
            "name": "tiny-gpt",
            "family": "llama",
            "num_kv_heads": sizes["num_heads"],
            "max_seq_len": sizes["seq_len"],
            "gated_mlp": True,
            "activation": "silu",
            "norm": "rmsnorm",
        }
    )


def plan_of(
    case: Case, model: Path, cluster: Path, settings: Sequence[str] = (), seq_len: int = 0
) -> Plan:
    """The planner's answer for the case's layout."""
    answer = planner.plan(
        str(model),
        str(cluster),
        framework=case.framework,
        profile=case.profile,
        precision="fp32",
        global_batch=case.global_batch,
        seq_len=seq_len or SIZES["seq_len"],
        settings=[*case.settings, *settings],
        fix=case.fix,
        top=1,
    )
    return answer.best


ROOT = Path(__file__).resolve().parents[2]


def calibrated(ranks: int, folder: Path) -> Path:
    """The cluster file of this machine under so many processes, its table beside it."""
    path = folder / f"cluster{ranks}.yaml"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", "-m", "planner.cli.app", "calibrate", "--measure"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run([*command, "--out", str(path)], check=True, env=environment, capture_output=True)
    return path


def launch_settings(cluster: Path) -> tuple[str, ...]:
    """Host seconds of a kernel's call, as the table beside a calibrated cluster file has it."""
    table = cluster.with_suffix(".csv")
    if not table.is_file():
        return ()
    lines = (each.split(",") for each in table.read_text().splitlines() if each[:1] != "#")
    names = next(lines)
    rows = [dict(zip(names, line, strict=True)) for line in lines]
    return tuple(
        f"traits.kernels.launch_s={float(row['time_us']) * 1e-6:.3g}"
        for row in rows
        if row["what"] == "launch"
    )


def _total(items: Iterable[LedgerItem], names: Iterable[str]) -> float:
    return sum(
        one.num_bytes
        for one in items
        for name in names
        if f"{one.name}.".startswith(f"{name}.") and one.name != "activations.sent_on"
    )


def planned(case: Case, plan: Plan, whole: Plan) -> Figures:
    """Time, bytes on the wire and bytes held, by the planner.

    The ledger is that of the fullest moment: where that is not the loss, what head and loss keep
    stands in the ledger of ``whole``, replicas with the same micro-batch.
    """
    subject = price(plan.context, plan.strategy)
    sent: Counter[str] = Counter()
    for node in execution(plan, timeline(subject))[0]:
        if node.kind in ("collective", "send") and not node.name.startswith(FLUSH):
            sent[node.collective or "send"] += round(node.num_bytes)
    items = stage_ledgers(subject)[0].items
    lasting = _total(items, case.lasting)
    forward = lasting + _total(items, (*case.waiting, "activations"))
    if case.kind == "fsdp":
        forward += _total(stage_ledgers(price(whole.context, whole.strategy))[0].items, HEAD)
    return Figures(
        step_s=plan.estimate.iter_time_s,
        sent_bytes=sent,
        lasting_bytes=round(lasting),
        forward_bytes=round(forward),
        step_bytes=round(_total(items, case.stepping)),
    )


def train(
    cases: Mapping[str, Case], folder: Path, *, steps: int, sizes: Mapping[str, int], limit_s: float
) -> dict[str, list[dict[str, Any]]]:
    """Train every case, and return what each of its ranks saw."""
    names = {name: f"run{number}" for number, name in enumerate(cases)}
    runs = {
        names[name]: {
            "kind": case.kind,
            "ranks": case.ranks,
            "zero": case.zero,
            "recompute": case.is_recomputed,
            "micro_batch": case.micro_batch,
            "num_micro_batches": case.num_micro_batches,
            "steps": steps,
        }
        for name, case in cases.items()
    }
    content = {"sizes": sizes, "runs": runs, "port": free_port()}
    (folder / "cases.json").write_text(json.dumps(content))
    run_worker([sys.executable, str(WORKER), str(folder)], folder, {}, limit_s)
    return {name: of_ranks(folder, case.ranks, f"{names[name]}.") for name, case in cases.items()}


def measured(case: Case, ranks: Sequence[Mapping[str, Any]], sizes: Mapping[str, int]) -> Figures:
    """What the ranks saw: the fastest step, and the bytes of the first of them.

    Left out of what forward keeps, as the planner leaves it out: one number per token (the norms'
    statistics). Left out everywhere: single numbers (step counters, norms of gradients).
    """
    first, tokens = ranks[0], case.micro_batch * sizes["seq_len"]
    lasting, forward, step = (
        Counter({int(size): number for size, number in first["held"][moment].items()})
        for moment in ("between", "forward", "step")
    )
    statistics = (forward - lasting)[4 * tokens] * 4 * tokens
    in_flight = {"pipeline": case.ranks, "fsdp": 0}.get(case.kind, 1)
    sent_on = in_flight * 4 * tokens * sizes["hidden_size"]
    seconds = [max(each) for each in zip(*(rank["seconds"] for rank in ranks), strict=True)]

    def total(held: Counter[int]) -> int:
        return sum(size * number for size, number in held.items())

    return Figures(
        step_s=min(seconds, default=0.0),
        sent_bytes={kind: size for kind, size in first["sent_bytes"].items() if size},
        lasting_bytes=total(lasting),
        forward_bytes=total(forward) - statistics - sent_on,
        step_bytes=total(step) if case.stepping else 0,
        spread=tuple(seconds),
    )
