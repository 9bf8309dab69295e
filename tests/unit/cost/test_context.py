import numpy as np
import pytest
from contexts import columns_of

from planner.cost import context
from planner.cost.context import columns_except, unique_rows
from planner.spec.strategy import STRATEGY_FIELDS


@pytest.mark.parametrize("largest", [2**62, 2**12])
def test_every_row_is_mapped_to_one_with_its_own_values(
    monkeypatch: pytest.MonkeyPatch, largest: int
) -> None:
    monkeypatch.setattr(context, "LARGEST_KEY", largest)  # The digits fit into one number or not
    rng, names = np.random.default_rng(1), ("tp", "pp", "dp", "cp", "zero_stage")
    columns = columns_of(**{name: rng.integers(0, 5, size=600) * 3 for name in names})
    first, index = unique_rows(columns, names)
    rows = np.stack([getattr(columns, name) for name in names], axis=1)
    assert (rows[first][index] == rows).all()
    assert len(first) == len(np.unique(rows, axis=0))
    nothing, nowhere = unique_rows(columns.take(np.zeros(0, dtype=int)), names)
    assert len(nothing) == len(nowhere) == 0


def test_columns_but_some_kinds_are_all_others() -> None:
    assert set(columns_except()) == set(STRATEGY_FIELDS) - {"num_micro_batches"}
    assert set(columns_except()) - set(columns_except("offload")) == {"offload", "offload_percent"}
