"""The fit finds constants that runs reveal, stays in their ranges, and never sees held-out runs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tools.validation.fit import (
    Constant,
    Sample,
    cross_validate,
    get,
    load_constants,
    predicted_s,
    samples_of,
    split_groups,
)
from tools.validation.records import Record, read_records

RUNS = Path(__file__).parents[3] / "validation" / "published_runs.jsonl"
SUSTAINED = "cluster.node.accelerator.gemm.sustained_fraction"


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """Every second run of two frameworks: enough to fit one constant."""
    every = [r for r in read_records(RUNS) if r.framework in ("megatron-lm", "composer-fsdp")]
    return every[::2]


@pytest.fixture(scope="module")
def samples(records: list[Record]) -> list[Sample]:
    return samples_of(records)


def constant(prior: float, low: float, high: float) -> Constant:
    return Constant(
        name="a100",
        path=SUSTAINED,
        where={"cluster.node.accelerator.name": ("a100-sxm-40", "a100-sxm-80")},
        prior=prior,
        low=low,
        high=high,
        source="test",
    )


def as_measured(samples: list[Sample], truth: Constant, value: float) -> list[Sample]:
    """The samples with times that the model itself gives under a known constant."""
    found = []
    for sample in samples:
        seconds = predicted_s(sample.run, truth.set(sample.run.context, value))
        record = sample.record.model_copy(update={"iter_time_s": seconds})
        found.append(replace(sample, record=record))
    return found


def test_a_constant_that_made_the_times_is_found(samples: list[Sample]) -> None:
    one = constant(0.8, 0.4, 1.2)
    found = cross_validate(as_measured(samples, one, 0.7), [one])
    assert found.constants[0].fitted == pytest.approx(0.7, rel=0.02)
    assert found.fitted.mape == pytest.approx(0.0, abs=0.005)
    assert found.test_mean < (found.prior.mape or 0.0)


def test_a_constant_stays_in_its_range(samples: list[Sample]) -> None:
    one = constant(0.8, 0.78, 0.82)
    found = cross_validate(as_measured(samples, one, 0.5), [one])
    assert found.constants[0].fitted == pytest.approx(0.78)


def test_constants_that_apply_to_no_run_are_left_out(samples: list[Sample]) -> None:
    other = replace(constant(0.8, 0.4, 1.2), where={"cluster.node.accelerator.name": ("none",)})
    found = cross_validate(samples[:4], [other, constant(0.8, 0.4, 1.2)])
    assert [one.constant.name for one in found.constants] == ["a100"]


def test_groups_are_never_split(samples: list[Sample]) -> None:
    mask = split_groups(samples, 0)
    groups = {sample.group for sample in samples}
    inside = {s.group for s, first in zip(samples, mask, strict=True) if first}
    outside = {s.group for s, first in zip(samples, mask, strict=True) if not first}
    assert inside | outside == groups
    assert not inside & outside
    assert len(inside) == len(groups) // 2


def test_mixtures_and_derived_times_are_not_fitted(samples: list[Sample]) -> None:
    assert samples
    for sample in samples:
        assert sample.record.model.moe is None
        assert sample.record.has_direct_time


def test_setting_a_constant_changes_only_contexts_it_applies_to(samples: list[Sample]) -> None:
    one = constant(0.8, 0.4, 1.2)
    changed = 0
    for sample in samples:
        context = one.set(sample.run.context, 0.77)
        changed += get(context, SUSTAINED) == 0.77
        assert (context is sample.run.context) != one.applies(sample.run.context)
    assert 0 < changed < len(samples)


def test_listed_constants_lie_in_their_ranges_and_have_sources() -> None:
    for one in load_constants():
        assert one.low < one.prior < one.high, one.name
        assert len(one.source) > 20, one.name


def test_listed_constants_have_one_value_in_force_each_inside_its_range() -> None:
    contexts = [sample.run.context for sample in samples_of(read_records(RUNS))]
    for one in load_constants():
        values = {one.value(context) for context in contexts if one.applies(context)}
        assert len(values) == 1, one.name
        (value,) = values
        assert one.low <= value <= one.high, (one.name, value)
        assert np.isfinite(value)
