"""Spoilt files of every kind: findings or an error for users, valid reports, nothing else."""

from pathlib import Path
from random import Random

import pytest
from any_file import Kind, kinds, name_for, use
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import mutated

SHORT = 25
CHEAP = 300
SLOW = {"accelerate", "bridge", "command", "deepspeed", "megatron", "torchtitan", "trainer"}


@pytest.mark.parametrize("kind", kinds().values(), ids=list(kinds()))
def test_a_spoilt_file_ends_in_findings(kind: Kind, tmp_path: Path) -> None:
    seeds = [path.read_bytes() for path in kind.seeds]
    path = tmp_path / name_for(kind.name)

    @settings(max_examples=SHORT if kind.name in SLOW else CHEAP)
    @given(st.sampled_from(seeds), st.integers(0, 2**32))
    def spoilt(seed: bytes, number: int) -> None:
        path.write_bytes(mutated(seed, seeds, Random(number)))
        use(kind, path)

    spoilt()
