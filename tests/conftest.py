"""Order and marks of tests, settings of drawn inputs, formats that stand in for real ones."""

import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import contexts
import pytest
from fake_format import FAKE, FORMAT
from hypothesis import HealthCheck, settings

from planner.cost.context import Context
from planner.formats import registry as formats
from planner.formats.format import Format
from planner.layers.op import LayerShape
from planner.spec.model import ModelSpec
from planner.spec.strategy import Strategy, StrategyColumns

os.environ["PLANNER_CACHE"] = "off"
# Without written bytecode each process of the tests takes three times as long to start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

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
LONGEST = """
test_published_runs.py test_screens.py test_training.py test_search_exact.py
test_format_torchtitan_oracle.py test_conflicts_exact.py test_megatron_starts.py test_docs.py
test_fsdp_memory.py test_megatron_parameters.py test_zero_shards.py test_wheel.py
test_published_layouts.py
"""
SLOW_SCREENS = ("like", "maximize", "sensitivity", "size", "train", "versus", "why", "widths")
# What scripts/check leaves to --all: each claim here is also held by a quicker test of the gate.
SLOW = (
    "property/",
    "validation/",
    *(f"examples/test_screens.py::test_the_answer_says_so[{name}" for name in SLOW_SCREENS),
    "unit/test_docs.py::test_commands_print",
    "unit/test_notebook.py",
    "unit/test_skill.py::test_examples_run",
    "unit/answers/test_largest.py",
    "unit/answers/test_sensitivity.py",
    "unit/answers/test_size.py",
    "unit/calibrate/test_measure.py",
    "unit/check/test_check_file.py::test_memory_inside_the_uncertainty",
    "unit/cli/test_calibrate_command.py::test_another_machine",
    "unit/cli/test_emit_formats.py",
    "unit/cli/test_fix_file.py",
    "unit/cli/test_fix_script.py",
    "unit/cli/test_json_documents.py",
    "unit/cli/test_plan.py::test_any_framework",
    "unit/cli/test_plan.py::test_the_suggested_number",
    "unit/cli/test_plan_options.py",
    "unit/cli/test_size",
    "unit/cli/test_software_options.py",
    "unit/cli/test_why_command.py",
    "unit/layers/test_rank_parameters.py",
    "unit/query/test_traits.py",
    "unit/search/space/test_space.py",
    "unit/sweep/test_run.py::test_a_",
    "unit/sweep/test_run.py::test_an_unreachable_ray_address",
    "unit/tools/validation/test_fit.py",
)
IN_GATE = (
    "property/test_accelerate_round_trip.py",
    "property/test_megatron_round_trip.py::test_overrides_of_bridge",
    "property/test_estimate_invariants.py",
    "property/test_schedule_simulation.py",
    "validation/test_kernel_tables.py",
    "validation/test_published_layouts.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: place for place, name in enumerate(LONGEST.split())}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        if name.startswith(SLOW) and not name.startswith(IN_GATE):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def wide_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output is as wide as in a pipe, whatever the terminal that the tests are started from."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def fake_format(monkeypatch: pytest.MonkeyPatch) -> Iterator[Format]:
    """A format named ``fake`` that the program finds beside the real ones."""
    module = ModuleType("planner.formats.fake.format")
    module.FORMAT = FAKE  # type: ignore[attr-defined]
    known = (*formats.format_names(), "fake")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(formats, "format_names", lambda: known)
    yield FAKE
    formats.load_format.cache_clear()


@pytest.fixture
def demo_format(monkeypatch: pytest.MonkeyPatch) -> Format:
    """The only format there is: a key and a value per line (tests/fake_format.py)."""
    monkeypatch.setattr(formats, "format_names", lambda: ("demo",))
    monkeypatch.setattr(formats, "load_format", lambda name: {"demo": FORMAT}[name])
    return FORMAT


@pytest.fixture(scope="session")
def context_of() -> Callable[..., Context]:
    return contexts.context_of


@pytest.fixture(scope="session")
def columns_of() -> Callable[..., StrategyColumns]:
    return contexts.columns_of


@pytest.fixture(scope="session")
def shape_of() -> Callable[..., LayerShape]:
    return contexts.shape_of


@pytest.fixture(scope="session")
def small_model() -> Callable[..., ModelSpec]:
    return contexts.small_model


@pytest.fixture(scope="session")
def strategy_of() -> Callable[..., Strategy]:
    return contexts.strategy_of
