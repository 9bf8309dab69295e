"""What the format writes for a few plans stays what it was, byte for byte.

After a deliberate change run this file to write them again.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from contexts import context_of

from planner.formats.torchtitan.format import FORMAT
from planner.spec.strategy import Strategy

FOLDER = Path(__file__).parent
FSDP = Strategy(
    dp=4,
    tp=4,
    pp=1,
    vpp=1,
    cp=1,
    ep=1,
    etp=4,
    zero_stage=3,
    micro_batch=2,
    num_micro_batches=8,
    sequence_parallel=True,
    offload="none",
    layers_per_stage=(32,),
    selective_layers_per_stage=(32,),
    recompute_layers_per_stage=(0,),
    dp_replicate=2,
)
PIPELINE = replace(
    FSDP,
    dp=2,
    pp=2,
    vpp=2,
    dp_replicate=1,
    zero_stage=2,
    num_micro_batches=16,
    layers_per_stage=(16, 16),
    selective_layers_per_stage=(0, 0),
    recompute_layers_per_stage=(16, 16),
)
MIXTURE = replace(
    FSDP,
    dp=16,
    tp=1,
    ep=4,
    etp=1,
    dp_replicate=1,
    num_micro_batches=2,
    sequence_parallel=False,
    selective_layers_per_stage=(0,),
)
PLANS = {
    "llama3-8b_hybrid": ("llama3-8b", FSDP),
    "llama3-8b_interleaved": ("llama3-8b", PIPELINE),
    "mixtral-8x7b_experts": ("mixtral-8x7b", MIXTURE),
}


def written(name: str) -> dict[str, str]:
    model, strategy = PLANS[name]
    context = context_of(
        model=model, cluster="2xdgx-h100", framework="torchtitan", global_batch=64, seq_len=8192
    )
    return {file.name: file.text for file in FORMAT.emit(context, strategy).files}


@pytest.mark.parametrize("name", PLANS)
def test_emitted_files_equal_the_golden_ones(name: str) -> None:
    golden = {file.stem: file.read_text() for file in sorted((FOLDER / name).iterdir())}
    assert written(name) == golden


if __name__ == "__main__":
    for name in PLANS:
        (FOLDER / name).mkdir(exist_ok=True)
        for file, text in written(name).items():
            (FOLDER / name / f"{file}.golden").write_text(text)
