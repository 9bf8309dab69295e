"""Records of published training runs: one JSON object a line (see tests/validation/README.md)."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from planner.answers.layout import layout_chunks
from planner.catalog.figures import Positive, validation_problems
from planner.documents.file import read_text
from planner.documents.tree import parsed_json
from planner.errors import InputError, Problem
from planner.limits import MAX_BATCH, MAX_EXPERTS, MAX_GPUS, MAX_LOG_BYTES
from planner.spec.job import Precision
from planner.spec.model import Experts, Layers, LayersOrNone, Tokens, Width, WidthOrNone
from planner.units import GB, GIB, MIB
from tools.validation.words import spelled_alike

Degree = Annotated[int, Field(gt=0, le=MAX_GPUS)]
"""Or another number of accelerators."""
Sequences = Annotated[int, Field(gt=0, le=MAX_BATCH)]
ZeroStage = Literal[0, 1, 2, 3]
Quality = Literal["A", "B", "C", "analytic"]
TimeBasis = Literal["published", "from tokens/s/GPU", "from TFLOPs or MFU"]
Captured = Literal["full_iteration", "attn", "mamba", "mlp", "moe_router", "moe_preprocess"]
Share = Annotated[float, Field(ge=0.0, le=1.0)] | str | None
"""A fraction of a part, or the source's words."""
Module = Literal["layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"]


def _layout(text: str) -> str:
    try:
        layout_chunks(text, 0)
    except ValueError as error:
        raise ValueError(f"a pipeline layout, but has {error}") from None
    return text


MEMORY_UNITS = {"GiB": 1.0, "GB": GB / GIB, "MiB": MIB / GIB}
"""GiB in one of a record's units."""


class _Part(BaseModel):
    """A block of a record: frozen, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Source(_Part):
    """Where the figures stand."""

    title: str
    where: str = ""
    table: str | None = None
    by: Literal["maker", "user"] = "user"
    """Whose runs: of a maker of the software or the hardware, tuned to be shown, or of others."""


class Software(_Part):
    """The generation of a framework that a run is estimated as, and what it states against it."""

    framework: str
    profile: str
    optimizer: str | None = None
    """Where it is not the framework's usual one."""
    is_nearest: bool = False
    """Nothing is known of a framework of that name: the nearest family stands for it."""


class Moe(_Part):
    """Mixture-of-experts layers as published."""

    experts: Experts
    top_k: Experts
    expert_ffn: Width
    shared_experts: Annotated[int, Field(ge=0, le=MAX_EXPERTS)] = 0
    first_dense_layers: LayersOrNone = 0
    shared_expert_ffn: Annotated[
        Width | None, Field(validation_alias=AliasChoices("shared_expert_ffn", "shared_ffn"))
    ] = None
    """Width of all shared experts together, where it is not shared_experts · expert_ffn."""
    latent: WidthOrNone | None = None
    """Width at which routed experts work, where it is not the hidden size."""


class Mla(_Part):
    """Multi-head latent attention as published."""

    q_lora: WidthOrNone
    kv_lora: Width
    qk_nope: Width
    qk_rope: Width
    v_head: Width


class Mamba(_Part):
    """Mamba-2 mixers as published; ``conv`` and ``chunk`` in tokens."""

    heads: Width
    head_dim: Width
    state: Width
    groups: Width
    conv: Layers = 4
    chunk: Layers = 128


class Mtp(_Part):
    """Multi-token prediction as trained: layers per depth, whose weights may be shared."""

    depth: Layers
    pattern: str
    repeated_layer: bool = False


class Model(_Part):
    """Architecture as run; None is not published."""

    name: str
    params_b: Positive | None = None
    active_params_b: Positive | None = None
    layers: Layers | None = None
    hidden: Width | None = None
    heads: Width | None = None
    kv_heads: Width | None = None
    head_dim: Width | None = None
    ffn: Width | None = None
    gated_mlp: bool | None = None
    biases: bool | None = None
    """Linear layers have them, experts' too; None: those of models that are not gated."""
    clamped: bool = False
    """The inputs of the gated activation are clamped first."""
    scaled_rotary: bool = False
    """Rotary embeddings scale queries and keys (YaRN)."""
    vocab: Width | None = None
    seq_len: Tokens | None = None
    tied_embeddings: bool | None = None
    moe: Moe | None = None
    mla: Mla | None = None
    sliding_window: Tokens | None = None
    full_attention_step: Layers | None = None
    """Of this many layers the last attends beyond the window."""
    linear_attention: bool = False
    attention: str | None = None
    """In the source's words, which are not read."""
    layer_pattern: str = ""
    """A letter a layer: M Mamba-2, * attention, E experts, - MLP."""
    mamba: Mamba | None = None
    mtp: Mtp | None = None
    embedding_norm: bool = False
    """A layer norm follows the embedding."""


class Hardware(_Part):
    """Hardware as published, in its publisher's words, and the node of the catalog that it is."""

    gpu: str
    gpus: Degree | None = None
    gpus_per_node: Degree | None = None
    intra: str | None = None
    inter: str | None = None
    node: str | None = None
    """None where the catalog has none, or the accelerator is not stated."""
    node_gbit_per_s: Positive | None = None
    """Published network rate of a node that the catalog has with another one."""
    domain_gpus: Degree | None = None
    """Accelerators that its scale-up network joined, where fewer than the node's: a slice."""


class Offload(_Part):
    """What lies in host memory, by part, and how it is worked on there; None is not published."""

    device: Literal["cpu", "nvme"] | None = None
    optimizer: Share = None
    params: Share = None
    grads: Share = None
    master: Share = None
    activations: bool | int | str | None = None
    cpu_adam: str | None = None
    bind_cores: bool | None = None
    overlap: bool | str | None = None
    overlap_d2h_h2d: bool | None = None
    update_interval: int | None = None
    stage3_max_live_parameters: Positive | None = None
    prefetch_bucket: Positive | None = None
    persistence_threshold: int | None = None


class Parallel(_Part):
    """The parallel layout; batches in sequences."""

    tp: Degree | None = None
    pp: Degree | None = None
    vpp: Layers | None = None
    cp: Degree | None = None
    ep: Degree | None = None
    etp: Degree | None = None
    dp: Degree | None = None
    sp: bool | None = None
    zero: ZeroStage | None = None
    dp_replicate: Degree | None = None
    micro_batch: Sequences | None = None
    global_batch: Sequences | None = None
    recompute: Literal["full", "selective", "none"] | None = None
    recompute_step: Layers | None = None
    """Selective recomputation repeats one in so many layers whole; None: the framework's own."""
    recompute_modules: tuple[Module, ...] = ()
    pp_layout: Annotated[str, AfterValidator(_layout)] | None = None
    offload: str | None = None
    """As strategies say it, or in the source's words, which are not modelled."""
    offload_detail: Offload | None = None
    offloaded_layers: Layers | None = None
    """Layers of the only stage whose saved activations lie in host memory."""


class Assumed(_Part):
    """What the framework takes where a layout was not published in full."""

    zero: ZeroStage | None = None
    vpp: Layers | None = None
    sp: bool | None = None


class Runtime(_Part):
    """Settings that decide the time, as stated; None is left to the profile.

    Named as the columns of hwdb/recipes.
    """

    cuda_graph: tuple[Captured, ...] | None = None
    dispatcher: Literal["alltoall", "deepep", "hybridep", "flex"] | None = None
    expert_overlap: bool | None = None
    tp_overlap: bool | None = None
    products_in_16_bit: Literal["experts", "linears"] | None = None
    layers_in_16_bit_fraction: Annotated[float, Field(ge=0, le=1)] | None = None
    launch_blocking: bool = False
    """CUDA_LAUNCH_BLOCKING=1."""
    vocab_padding: Width | None = None
    """What the vocabulary is padded to a multiple of; 1: it stays as it is."""
    in_8_bit: tuple[Literal["attention", "head"], ...] = ()
    """What the recipe computes in the run's 8 bits beside its layers' products."""
    routing: Literal["balanced", "natural"] = "balanced"
    """Of a mixture: balance forced or padded to (benchmarks), or as the router chose."""
    capacity_factor: Positive | None = None
    """Of a mixture's experts, which are padded to it or drop what is beyond."""
    pads_to_capacity: bool = False


class Lora(_Part):
    """Adapters trained beside frozen weights."""

    rank: Width | None = None
    target_modules: tuple[str, ...] = ()
    modules_to_save: tuple[str, ...] | None = None
    quantized_base_bits: Literal[4, 8] | None = None
    quantizer: str | None = None
    concurrent_adapters: Width | None = None
    trainable_params: Positive | None = None


class Host(_Part):
    """The host as published."""

    cpu: str | None = None
    memory_gb: Positive | None = None
    pcie: str | None = None


class Memory(_Part):
    """Published peaks in ``unit``; ``reported_gb`` is of no kind that is compared."""

    unit: Literal["GiB", "GB", "MiB"] = "GiB"
    kind: str | None = None
    """What was read, in the source's words."""
    allocated_gib: Positive | None = None
    allocated_gib_by_rank: list[Positive] | None = None
    reserved_gib: Positive | None = None
    reported_gb: Positive | None = None
    nvidia_smi_gb: Positive | None = None
    nvidia_smi_stages: Literal["first", "first and last"] | None = None
    """Stages on whose devices nvidia-smi was read; None: all."""
    longest_seq_len: Tokens | None = None
    """Tokens of the sequences that the peak was read at, where ``model.seq_len`` is a mean."""


class Record(_Part):
    """One published run; fields as in tests/validation/README.md, None is not published."""

    id: Annotated[str, Field(min_length=1)]
    source: Source
    quality: Quality
    basis: Literal["read", "recalled"] | None = None
    framework: str
    software: Software
    traits: dict[str, Any] = Field(default_factory=dict)
    """Facts and traits that the record states against its profile, by their dotted names."""
    task: Literal["pretrain", "sft", "lora", "rl-trainer"] = "pretrain"
    model: Model
    hardware: Hardware
    parallel: Parallel
    assumed: Assumed = Assumed()
    runtime: Runtime = Runtime()
    precision: Precision
    iter_time_s: Positive | None = None
    iter_time_basis: TimeBasis | None = None
    tokens_per_s_per_gpu: Positive | None = None
    tflops_per_gpu: Positive | None = None
    mfu: Positive | None = None
    hfu: Positive | None = None
    flops_convention: str | None = None
    """Words between semicolons; ``mtp``: one layer of multi-token prediction is trained."""
    memory: Memory | None = None
    lora: Lora | None = None
    pair: str | None = None
    """The same run without offload."""
    host: Host | None = None
    suspect: bool = False
    """Its figures contradict each other or the hardware."""
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
        """True where the whole configuration is known and the figures are first hand and sound."""
        return self.complete and self.quality in ("A", "B") and not self.suspect

    @property
    def at_peak(self) -> Self:
        """The run of batches as long as the one that its peak was read at."""
        longest = self.memory.longest_seq_len if self.memory else None
        if longest is None:
            return self
        return self.model_copy(update={"model": self.model.model_copy(update={"seq_len": longest})})

    @property
    def mtp_layers(self) -> int:
        """Layers of multi-token prediction that were trained."""
        if self.model.mtp:
            return self.model.mtp.depth
        words = (self.flops_convention or "").split(";")
        return int("mtp" in (word.strip() for word in words))

    @property
    def has_direct_time(self) -> bool:
        """True where the iteration time was published, or follows exactly from tokens/s."""
        direct = self.iter_time_basis in ("published", "from tokens/s/GPU")
        return direct and self.iter_time_s is not None


_WHOLE = {"": "record", "line 1": "record"}
"""What is said of a record as a whole."""


@dataclass(frozen=True, kw_only=True)
class Unread:
    """A line that is no record we understand."""

    name: str
    """Its id; without one, its line."""
    problems: tuple[Problem, ...]


@dataclass(frozen=True, kw_only=True)
class Runs:
    """What a file of published runs holds."""

    records: tuple[Record, ...]
    unread: tuple[Unread, ...] = ()


def _parse(line: str, where: str) -> Record | Unread:
    name = where
    try:
        parsed = parsed_json(where, line).value
        if isinstance(parsed, dict):
            name = str(parsed.get("id") or where)
            parsed = spelled_alike(parsed)
        return Record.model_validate(parsed)
    except InputError as error:
        problems = error.problems
    except ValidationError as error:
        problems = tuple(validation_problems(error, Record, where))
    named = tuple(replace(each, key=_WHOLE.get(each.key, each.key)) for each in problems)
    return Unread(name=name, problems=named)


def read_runs(path: Path) -> Runs:
    """Return the records of a JSONL file, and by name what could not be read.

    InputError where no line is a record: the file is something else.
    """
    records: list[Record] = []
    unread: list[Unread] = []
    first_line: dict[str, int] = {}
    for number, line in enumerate(read_text(path, MAX_LOG_BYTES).splitlines(), start=1):
        if not line.strip():
            continue
        parsed = _parse(line, f"{path}:{number}")
        if isinstance(parsed, Unread):
            unread.append(parsed)
        elif parsed.id in first_line:
            message = f"{parsed.id!r} was already used in line {first_line[parsed.id]}"
            problem = Problem(where=f"{path}:{number}", key="id", message=message)
            unread.append(Unread(name=parsed.id, problems=(problem,)))
        else:
            first_line[parsed.id] = number
            records.append(parsed)
    if not records:
        problems = [problem for each in unread for problem in each.problems]
        nothing = Problem(where=str(path), key="file", message="holds no record")
        raise InputError(problems or [nothing])
    return Runs(records=tuple(records), unread=tuple(unread))


def read_records(path: Path) -> list[Record]:
    """Return the records of a JSONL file whose lines all are; InputError names all that are not."""
    runs = read_runs(path)
    if runs.unread:
        raise InputError([problem for each in runs.unread for problem in each.problems])
    return list(runs.records)
