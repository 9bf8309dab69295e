"""What many tests start from: small models, clusters with little memory, whole contexts."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from types import ModuleType

import numpy as np
import pytest
from fake_format import FORMAT
from hypothesis import HealthCheck, settings

from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.cost.context import Context
from planner.errors import ExpressError
from planner.formats import registry as formats
from planner.formats.format import (
    Emitted,
    ExplainedKey,
    Format,
    OutputFile,
    ParsedConfig,
    SourceText,
)
from planner.frameworks.registry import load_traits
from planner.layers.op import LayerShape
from planner.spec.cluster import ClusterSpec
from planner.spec.job import JobSpec, Precision
from planner.spec.model import Biases, ModelSpec
from planner.spec.strategy import Strategy, StrategyColumns

settings.register_profile(
    "untimed",
    parent=settings(),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("deep", parent=settings.get_profile("untimed"), max_examples=400)
settings.load_profile("untimed")
"""No random test fails because a machine is slow; the function's fixtures hold no state.

``deep`` draws all that :func:`depth.of_all` asks for.
"""

# Files that take most of a minute each run first, so that no worker ends with one alone.
LONGEST = (
    "test_published_runs.py",
    "test_training.py",
    "test_search_exact.py",
    "test_format_torchtitan_oracle.py",
    "test_conflicts_exact.py",
    "test_megatron_starts.py",
    "test_docs.py",
    "test_fsdp_memory.py",
    "test_megatron_parameters.py",
    "test_zero_shards.py",
    "test_wheel.py",
    "test_published_layouts.py",
)
# What scripts/check leaves to --all: each claim here is also held by a quicker test of the gate.
SLOW = (
    "property/",
    "validation/",
    "unit/test_docs.py::test_commands_run",
    "unit/test_notebook.py",
    "unit/test_skill.py::test_examples_run",
    "unit/answers/test_largest.py",
    "unit/answers/test_sensitivity.py",
    "unit/answers/test_size.py",
    "unit/check/test_check_file.py::test_memory_inside_the_uncertainty",
    "unit/cli/test_emit_formats.py",
    "unit/cli/test_fix_file.py",
    "unit/cli/test_fix_plan.py",
    "unit/cli/test_fix_script.py",
    "unit/cli/test_json_documents.py",
    "unit/cli/test_like_file.py",
    "unit/cli/test_maximize_option.py",
    "unit/cli/test_plan.py::test_any_framework",
    "unit/cli/test_plan.py::test_the_suggested_number",
    "unit/cli/test_plan_options.py",
    "unit/cli/test_schedule_option.py",
    "unit/cli/test_sensitivity_command.py",
    "unit/cli/test_size.py",
    "unit/cli/test_size_gpus.py",
    "unit/cli/test_software_options.py",
    "unit/cli/test_train_options.py",
    "unit/cli/test_versus_option.py",
    "unit/cli/test_why_command.py",
    "unit/layers/test_rank_parameters.py",
    "unit/query/test_traits.py",
    "unit/search/space/test_space.py",
    "unit/sweep/test_run.py::test_a_killed_process",
    "unit/sweep/test_run.py::test_a_cell_that_kills",
    "unit/tools/validation/test_fit.py",
)
IN_GATE = (
    "property/test_accelerate_round_trip.py",
    "property/test_bridge_round_trip.py",
    "property/test_estimate_invariants.py",
    "property/test_schedule_simulation.py",
    "validation/test_kernel_tables.py",
    "validation/test_published_layouts.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        if name.startswith(SLOW) and not name.startswith(IN_GATE):
            item.add_marker(pytest.mark.slow)


def make_model(**changes: object) -> ModelSpec:
    """A GPT of a few layers; every dimension is a power of two."""
    sizes: dict[str, object] = {
        "name": "small",
        "num_layers": 4,
        "hidden_size": 1024,
        "num_heads": 16,
        "num_kv_heads": 16,
        "head_dim": 64,
        "ffn_size": 4096,
        "vocab_size": 32000,
        "max_seq_len": 1024,
        "biases": Biases(qkv=True, attention_output=True, mlp=True),
    }
    return ModelSpec(**{**sizes, **changes})


def with_hbm(cluster: ClusterSpec, hbm_bytes: float) -> ClusterSpec:
    """The cluster with accelerators of another memory size."""
    accelerator = replace(cluster.accelerator, hbm_bytes=hbm_bytes)
    return replace(cluster, node=replace(cluster.node, accelerator=accelerator))


def make_context(
    *,
    model: ModelSpec | str | None = None,
    cluster: str = "1xdgx-h100",
    framework: str = "megatron",
    profile: str = "current",
    global_batch: int = 16,
    seq_len: int = 1024,
    hbm_bytes: float | None = None,
    precision: Precision = "bf16",
    mtp_layers: int = 0,
) -> Context:
    """A context from names; ``model`` may be a spec."""
    machines = load_cluster(cluster)
    if model is None or isinstance(model, str):
        model = load_model(model) if model else make_model()
    return Context(
        model=model,
        job=JobSpec(
            global_batch=global_batch,
            seq_len=seq_len,
            precision=precision,
            mtp_layers=mtp_layers,
        ),
        cluster=with_hbm(machines, hbm_bytes) if hbm_bytes else machines,
        traits=load_traits(framework, profile),
    )


def make_columns(**values: object) -> StrategyColumns:
    """Columns from scalars and lists; else 1 (0 for codes, ZeRO and sp; 100 percent; etp: tp)."""
    codes = ("zero_stage", "offload", "placement", "sequence_parallel", "schedule")
    defaults = dict.fromkeys(codes, 0) | {"offload_percent": 100, "etp": values.get("tp", 1)}
    given = {
        field.name: np.atleast_1d(values.pop(field.name, defaults.get(field.name, 1)))
        for field in fields(StrategyColumns)
    }
    assert not values, f"unknown columns {sorted(values)}"
    length = max(len(column) for column in given.values())
    return StrategyColumns(**{k: np.broadcast_to(v, length).copy() for k, v in given.items()})


def make_shape(
    *,
    micro_batch: int = 1,
    seq_len: int = 1024,
    tp: int = 1,
    cp: int = 1,
    ep: int = 1,
    etp: int | None = None,
    sp: int = 0,
) -> LayerShape:
    """The shape of one micro-batch, as columns of length one; etp is tp when None."""
    return LayerShape(
        micro_batch=np.array([float(micro_batch)]),
        seq_len=seq_len,
        tp=np.array([float(tp)]),
        cp=np.array([float(cp)]),
        ep=np.array([float(ep)]),
        etp=np.array([float(etp or tp)]),
        sequence_parallel=np.array([sp]),
    )


@pytest.fixture(autouse=True)
def wide_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output is as wide as in a pipe, whatever the terminal that the tests are started from."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="session")
def small_model() -> Callable[..., ModelSpec]:
    return make_model


@pytest.fixture(scope="session")
def context_of() -> Callable[..., Context]:
    return make_context


@pytest.fixture(scope="session")
def columns_of() -> Callable[..., StrategyColumns]:
    return make_columns


@pytest.fixture(scope="session")
def shape_of() -> Callable[..., LayerShape]:
    return make_shape


def make_strategy(**changes: object) -> Strategy:
    """One GPU, four layers; sizes of the batch follow from nothing."""
    ones = dict.fromkeys(
        ("dp", "tp", "pp", "vpp", "cp", "ep", "micro_batch", "num_micro_batches"), 1
    )
    layers = {"layers_per_stage": (4,), "selective_layers_per_stage": (0,)}
    rest = {"recompute_layers_per_stage": (0,), "zero_stage": 1, "offload": "none"}
    rest |= {"sequence_parallel": False, "etp": changes.get("tp", 1)}
    return Strategy(**{**ones, **layers, **rest, **changes})


FAKE_EMITTED = Emitted(
    files=(
        OutputFile(name="config.json", text='{"price": "$$5 $(HOME) ${HOME} `id`"}\n'),
        OutputFile(name="more/extra.txt", text="END_OF_FILE\nit's"),
    ),
    command=("${SCRIPT}", "--config", "config.json", "--say", "it's $HOME", "--in=${DATA}/x y"),
    environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1", "WORDS": "two words"},
    variables={"SCRIPT": "the user's training script", "DATA": "folder of the data"},
    decided=(ExplainedKey(key="tp", value="1", why="one | two"),),
)


def _fake_emit(context: Context, strategy: Strategy) -> Emitted:
    if strategy.pp > 1:
        raise ExpressError("fake: no pipelines\nfake: no stages")
    return FAKE_EMITTED


def _fake_read(source: SourceText) -> ParsedConfig:
    return ParsedConfig(format="fake", path=source.path, settings={}, decisions={})


FAKE_FORMAT = Format(
    name="fake",
    title="Fake",
    framework="deepspeed",
    emit=_fake_emit,
    recognise=lambda source: source.text.startswith("fake"),
    read=_fake_read,
    rules=(),
    write_into=lambda source, context, strategy: source.text,
    versions="Fake 1.2",
)


@pytest.fixture
def fake_format(monkeypatch: pytest.MonkeyPatch) -> Iterator[Format]:
    """A format named ``fake`` that the program finds beside the real ones."""
    module = ModuleType("planner.formats.fake.format")
    module.FORMAT = FAKE_FORMAT  # type: ignore[attr-defined]
    known = (*formats.format_names(), "fake")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(formats, "format_names", lambda: known)
    yield FAKE_FORMAT
    formats.load_format.cache_clear()


@pytest.fixture(scope="session")
def strategy_of() -> Callable[..., Strategy]:
    return make_strategy


@pytest.fixture(scope="session")
def fake_emitted() -> Emitted:
    return FAKE_EMITTED


@pytest.fixture
def demo_format(monkeypatch: pytest.MonkeyPatch) -> Format:
    """The only format there is: a key and a value per line (tests/fake_format.py)."""
    monkeypatch.setattr(formats, "format_names", lambda: ("demo",))
    monkeypatch.setattr(formats, "load_format", lambda name: {"demo": FORMAT}[name])
    return FORMAT
