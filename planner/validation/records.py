"""Records of published training runs: one JSON object a line (see tests/validation/README.md)."""

import json
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from planner.errors import InputError, Problem
from planner.spec.job import Precision

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
ZeroStage = Literal[0, 1, 2, 3]
Quality = Literal["A", "B", "C", "analytic"]
TimeBasis = Literal["published", "from tokens/s/GPU", "from TFLOPs or MFU"]
Captured = Literal["full_iteration", "attn", "mlp", "moe_router", "moe_preprocess"]
Module = Literal["layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"]


class _Part(BaseModel):
    """A block of a record: frozen, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Source(_Part):
    """Where the figures stand."""

    title: str
    where: str = ""
    table: str | None = None


class Software(_Part):
    """The generation of a framework that a run is estimated as, and what it states against it."""

    framework: str
    profile: str
    gradient_reduce_bytes: Literal[2, 4] | None = None
    """Bytes of a gradient element on the wire."""


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
    sliding_window: PositiveInt | None = None
    full_attention_step: PositiveInt | None = None
    """Of this many layers the last attends beyond the window."""
    linear_attention: bool = False
    embedding_norm: bool = False
    """A layer norm follows the embedding."""


class Hardware(_Part):
    """Hardware as published, in its publisher's words, and the node of the catalog that it is."""

    gpu: str
    gpus: PositiveInt | None = None
    gpus_per_node: PositiveInt | None = None
    intra: str | None = None
    inter: str | None = None
    node: str | None = None
    """None where the catalog has none, or the accelerator is not stated."""
    node_gbit_per_s: PositiveFloat | None = None
    """Published network rate of a node that the catalog has with another one."""


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
    zero: ZeroStage | None = None
    dp_replicate: PositiveInt | None = None
    micro_batch: PositiveInt | None = None
    global_batch: PositiveInt | None = None
    recompute: Literal["full", "selective", "none"] | None = None
    recompute_step: PositiveInt | None = None
    """Selective recomputation repeats one in so many layers whole; None: the framework's own."""
    recompute_modules: tuple[Module, ...] = ()
    pp_layout: str | None = None
    offload: (
        Literal["none", "optimizer:host", "optimizer+parameters:host", "activations:host"] | None
    ) = None
    offloaded_layers: PositiveInt | None = None
    """Layers of the only stage whose saved activations lie in host memory."""


class Assumed(_Part):
    """What the framework takes where a layout was not published in full."""

    zero: ZeroStage | None = None
    vpp: PositiveInt | None = None


class Runtime(_Part):
    """Settings that decide the time, as stated; None is left to the profile.

    Named as the columns of hwdb/recipes.
    """

    cuda_graph: tuple[Captured, ...] | None = None
    dispatcher: Literal["alltoall", "deepep", "hybridep", "flex"] | None = None
    expert_overlap: bool | None = None
    tp_overlap: bool | None = None


class Memory(_Part):
    """Published peaks; ``reported_gb`` is of an unstated kind and ``nvidia_smi_gb`` in GiB."""

    allocated_gib: PositiveFloat | None = None
    allocated_gib_by_rank: list[PositiveFloat] | None = None
    reserved_gib: PositiveFloat | None = None
    reported_gb: PositiveFloat | None = None
    nvidia_smi_gb: PositiveFloat | None = None
    nvidia_smi_stages: Literal["first", "first and last"] | None = None
    """Stages on whose devices nvidia-smi was read; None: all."""


class Record(_Part):
    """One published run; fields as in tests/validation/README.md, None is not published."""

    id: Annotated[str, Field(min_length=1)]
    source: Source
    quality: Quality
    basis: Literal["read", "recalled"] | None = None
    framework: str
    software: Software | None = None
    """None where no trait profile is of that framework."""
    task: Literal["pretrain", "sft", "lora"] = "pretrain"
    model: Model
    hardware: Hardware
    parallel: Parallel
    assumed: Assumed = Assumed()
    runtime: Runtime = Runtime()
    precision: Precision
    iter_time_s: PositiveFloat | None = None
    iter_time_basis: TimeBasis | None = None
    tokens_per_s_per_gpu: PositiveFloat | None = None
    tflops_per_gpu: PositiveFloat | None = None
    mfu: PositiveFloat | None = None
    hfu: PositiveFloat | None = None
    flops_convention: str | None = None
    memory: Memory | None = None
    out_of_memory: bool | None = None
    complete: bool
    notes: str = ""

    @model_validator(mode="after")
    def _assumes_only_what_is_not_published(self) -> Self:
        for name in self.assumed.model_fields_set:
            if getattr(self.parallel, name) is not None:
                raise ValueError(f"{name} is assumed, but parallel states it")
        return self

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
