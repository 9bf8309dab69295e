import math

import pytest

from planner.errors import InputError
from planner.frameworks.registry import (
    FRAMEWORKS,
    KINDS,
    load_optimizer,
    optimizer_figures,
    optimizer_names,
)
from planner.spec.training import state_bytes

OFFERED = [(name, framework) for framework in FRAMEWORKS for name in optimizer_names(framework)]
ALL = [(name, None) for name in optimizer_names()] + OFFERED


def test_every_framework_offers_adam_and_says_how() -> None:
    for framework in FRAMEWORKS:
        assert "adam" in optimizer_names(framework)
    assert all(load_optimizer(name, framework).setting for name, framework in OFFERED)
    assert {name for name, _ in OFFERED} == set(optimizer_names())


@pytest.mark.parametrize(("name", "framework"), ALL)
def test_every_figure_has_a_value_and_a_source(name: str, framework: str | None) -> None:
    for section, figures in optimizer_figures(name, framework).items():
        for key, figure in figures.items():
            assert set(figure) == {"value", "source"}, (section, key)
            assert isinstance(figure["source"], str), (section, key)
            assert figure["source"].strip(), (section, key)


@pytest.mark.parametrize(("name", "framework"), ALL)
def test_figures_hang_together(name: str, framework: str | None) -> None:
    optimizer = load_optimizer(name, framework)
    assert set(optimizer.zero_stages) <= {0, 1, 2, 3}
    assert optimizer.vector.factor_bytes == 0
    quantised = [kind for kind in KINDS if optimizer.states(kind).block_bytes > 0]
    assert bool(quantised) == (optimizer.min_quantised_elements > 0)
    for kind in quantised:
        assert optimizer.states(kind).element_bytes < optimizer.small_element_bytes
    # Gradient and master weights read, states read and written: nothing moves less.
    least = 2 + 2 * (optimizer.master_bytes or 4) + 2 * optimizer.matrix.element_bytes
    assert optimizer.step_traffic_bytes >= least


@pytest.mark.parametrize(
    ("name", "bytes_of"),
    [
        ("adam", {"matrix": 8, "vector": 8, "embedding": 8, "head": 8}),
        ("adam-bf16", {"matrix": 4, "vector": 4, "embedding": 4, "head": 4}),
        ("sgd", {"matrix": 0, "vector": 0, "embedding": 0, "head": 0}),
        ("sgd-momentum", {"matrix": 4, "vector": 4, "embedding": 4, "head": 4}),
        ("lion", {"matrix": 4, "vector": 4, "embedding": 4, "head": 4}),
        ("muon", {"matrix": 4, "vector": 8, "embedding": 8, "head": 8}),
    ],
)
def test_bytes_per_parameter(name: str, bytes_of: dict[str, int]) -> None:
    optimizer = load_optimizer(name)
    for kind, expected in bytes_of.items():
        shape = (4096,) if kind == "vector" else (4096, 14336)
        assert state_bytes(optimizer, kind, *shape) == expected * math.prod(shape), kind


def test_adafactor_keeps_a_row_and_a_column_of_matrices_and_whole_vectors() -> None:
    adafactor = load_optimizer("adafactor")
    assert state_bytes(adafactor, "matrix", 4096, 14336) == 4 * (4096 + 14336)
    assert state_bytes(adafactor, "embedding", 128256, 4096) == 4 * (128256 + 4096)
    assert state_bytes(adafactor, "vector", 4096) == 4 * 4096
    on_flat_partitions = load_optimizer("adafactor", "deepspeed")
    assert state_bytes(on_flat_partitions, "matrix", 128, 64) == 4 * 128 * 64


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [
        (256, 384, 2 * 98_304 + 8 * 384),
        (100, 41, 2 * 4_100 + 8 * 17),  # the last block is not full
        (100, 40, 8 * 4_000),  # below 4,096 elements
        (64, 64, 2 * 4_096 + 8 * 16),
        (5_000, 1, 2 * 5_000 + 8 * 20),
    ],
)
def test_eight_bit_states_have_block_scales_and_spare_small_tensors(
    rows: int, columns: int, expected: int
) -> None:
    # What bitsandbytes 0.50.2 allocates for these shapes.
    optimizer = load_optimizer("adam-8bit-bitsandbytes")
    assert state_bytes(optimizer, "matrix", rows, columns) == expected
    assert state_bytes(optimizer, "embedding", rows, columns) == 8 * rows * columns
    assert state_bytes(load_optimizer("adam-8bit"), "embedding", rows, columns) == expected


def test_one_eight_bit_moment_costs_half_of_two() -> None:
    lion, adam = load_optimizer("lion-8bit"), load_optimizer("adam-8bit-bitsandbytes")
    for columns in (40, 41, 4096):
        of_adam = state_bytes(adam, "matrix", 100, columns)
        assert state_bytes(lion, "matrix", 100, columns) == of_adam / 2


def test_a_framework_lays_its_own_figures_over_the_general_ones() -> None:
    general, megatron = load_optimizer("lion"), load_optimizer("lion", "megatron")
    assert general.vector.element_bytes == 4
    assert megatron.vector.element_bytes == 8
    assert megatron.matrix == general.matrix
    assert load_optimizer("adam-bf16").master_bytes is None
    assert load_optimizer("adam-bf16", "megatron").master_bytes == 2


@pytest.mark.parametrize(
    ("name", "framework", "said"),
    [
        ("adamw", None, "'adamw'.* adam, adam-bf16"),
        ("adamw", "megatron", "'adamw'.* adam, adam-bf16"),
        ("adafactor", "torchtitan", "torchtitan does not offer adafactor"),
        ("sgd", "torchtitan", "torchtitan does not offer sgd"),
    ],
)
def test_an_optimizer_that_is_not_offered_is_refused_with_those_that_are(
    name: str, framework: str | None, said: str
) -> None:
    with pytest.raises(InputError, match=f"--optimizer: .*{said}") as caught:
        load_optimizer(name, framework)
    offered = optimizer_names() if name == "adamw" else optimizer_names(framework)
    assert all(known in str(caught.value) for known in offered)
    assert name not in offered
