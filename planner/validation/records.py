"""Records of published training runs: one JSON object a line (see tests/validation/README.md)."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planner.errors import InputError, Problem

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Quality = Literal["A", "B", "C", "analytic"]
TimeBasis = Literal["published", "from tokens/s/GPU", "from TFLOPs or MFU"]


class _Part(BaseModel):
    """A block of a record: frozen, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Source(_Part):
    """Where the figures stand."""

    title: str
    where: str = ""
    table: str | None = None


class Moe(_Part):
    """Mixture-of-experts layers as published."""

    experts: PositiveInt
    top_k: PositiveInt
    expert_ffn: PositiveInt
    shared_experts: Annotated[int, Field(ge=0)] = 0
    first_dense_layers: Annotated[int, Field(ge=0)] = 0
    shared_expert_ffn: PositiveInt | None = None
    """Width of all shared experts together, where it is not shared_experts · expert_ffn."""


class Mla(_Part):
    """Multi-head latent attention as published."""

    q_lora: Annotated[int, Field(ge=0)]
    kv_lora: PositiveInt
    qk_nope: PositiveInt
    qk_rope: PositiveInt
    v_head: PositiveInt


class Model(_Part):
    """Architecture as run; None is not published."""

    name: str
    params_b: PositiveFloat | None = None
    active_params_b: PositiveFloat | None = None
    layers: PositiveInt | None = None
    hidden: PositiveInt | None = None
    heads: PositiveInt | None = None
    kv_heads: PositiveInt | None = None
    head_dim: PositiveInt | None = None
    ffn: PositiveInt | None = None
    gated_mlp: bool | None = None
    vocab: PositiveInt | None = None
    seq_len: PositiveInt | None = None
    tied_embeddings: bool | None = None
    moe: Moe | None = None
    mla: Mla | None = None
    attention: str | None = None


class Hardware(_Part):
    """Hardware as published; spellings vary."""

    gpu: str
    gpus: PositiveInt | None = None
    gpus_per_node: PositiveInt | None = None
    intra: str | None = None
    inter: str | None = None


class Parallel(_Part):
    """The parallel layout; batches in sequences."""

    tp: PositiveInt | None = None
    pp: PositiveInt | None = None
    vpp: PositiveInt | None = None
    cp: PositiveInt | None = None
    ep: PositiveInt | None = None
    etp: PositiveInt | None = None
    dp: PositiveInt | None = None
    sp: bool | None = None
    zero: Literal[0, 1, 2, 3, "dist-opt", "fsdp"] | None = None
    dp_replicate: PositiveInt | None = None
    micro_batch: PositiveInt | None = None
    global_batch: PositiveInt | None = None
    recompute: Literal["full", "selective", "none"] | None = None
    recompute_modules: str | list[str] | None = None
    pp_layout: str | None = None
    offload: str | None = None


class Memory(_Part):
    """Published peaks; ``reported_gb`` is of an unstated kind and ``nvidia_smi_gb`` in GiB."""

    allocated_gib: PositiveFloat | None = None
    allocated_gib_by_rank: list[PositiveFloat] | None = None
    reserved_gib: PositiveFloat | None = None
    reported_gb: PositiveFloat | None = None
    nvidia_smi_gb: PositiveFloat | None = None


class Record(BaseModel):
    """One published run. Unknown top-level keys are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: Annotated[str, Field(min_length=1)]
    source: Source
    quality: Quality
    framework: str
    task: str = "pretrain"
    model: Model
    hardware: Hardware
    parallel: Parallel
    runtime: dict[str, Any] = Field(default_factory=dict)
    precision: Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4"]
    iter_time_s: PositiveFloat | None = None
    iter_time_basis: TimeBasis | None = None
    memory: Memory | None = None
    out_of_memory: bool | None = None
    complete: bool
    notes: str = ""

    @property
    def is_scored(self) -> bool:
        """True where the whole configuration is known and the figures are first hand."""
        return self.complete and self.quality in ("A", "B")

    @property
    def has_direct_time(self) -> bool:
        """True where the iteration time was published, or follows exactly from tokens/s."""
        direct = self.iter_time_basis in ("published", "from tokens/s/GPU")
        return direct and self.iter_time_s is not None


def _key(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) or "record"


def _line_problems(error: ValidationError, where: str) -> list[Problem]:
    return [
        Problem(
            where=where,
            key=_key(detail["loc"]),
            message=f"{detail['msg']}; given {detail['input']!r}"[:200],
        )
        for detail in error.errors()
    ]


def _parse(line: str, where: str) -> Record | list[Problem]:
    try:
        raw = json.loads(line)
    except json.JSONDecodeError as error:
        return [Problem(where=where, key="record", message=f"not JSON: {error}")]
    try:
        return Record.model_validate(raw)
    except ValidationError as error:
        return _line_problems(error, where)


def read_records(path: Path) -> list[Record]:
    """Return the records of a JSONL file; InputError carries the problems of all its lines."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
        raise InputError.single(str(path), "file", message) from None
    except UnicodeDecodeError as error:
        raise InputError.single(str(path), "file", f"not UTF-8 text: {error}") from None
    records: list[Record] = []
    problems: list[Problem] = []
    first_line: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        parsed = _parse(line, f"{path}:{number}")
        if isinstance(parsed, list):
            problems += parsed
        elif parsed.id in first_line:
            message = f"{parsed.id!r} was already used in line {first_line[parsed.id]}"
            problems.append(Problem(where=f"{path}:{number}", key="id", message=message))
        else:
            first_line[parsed.id] = number
            records.append(parsed)
    if not records and not problems:
        problems.append(Problem(where=str(path), key="file", message="holds no record"))
    if problems:
        raise InputError(problems)
    return records
