"""DeepSpeed files: what is written is read back, and edits leave what is the user's."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from drawn_deepspeed import canonical, draw, expressible, strategy_of
from hypothesis import given
from hypothesis import strategies as st

from planner.documents.nodes import Node, parse_json
from planner.errors import ExpressError
from planner.formats.deepspeed.format import emit, read, write_into
from planner.formats.format import CheckContext, Format, SourceText
from planner.formats.registry import load_format

FORMAT: Format = load_format("deepspeed")
SEEDS = st.integers(0, 10**6)


def source(text: str) -> SourceText:
    return SourceText(path="ds.json", text=text)


def spans_of(node: Node, above: str = "") -> Iterator[tuple[str, tuple[int, int]]]:
    """Where every key with its value stands, by its dotted path."""
    for key, item in node.pairs:
        yield f"{above}{key.text}", (key.start, item.end)
        yield from spans_of(item, f"{above}{key.text}.")


@given(SEEDS)
def test_emitted_plans_are_read_back_as_they_were_and_break_no_rule(seed: int) -> None:
    context, strategy = next(expressible(seed))
    text = FORMAT.emit(context, strategy).files[0].text
    reading = FORMAT.read(source(text))
    assert not reading.findings
    assert strategy_of(context, dict(reading.decisions)) == canonical(context, strategy)
    decided = {name: value.value for name, value in reading.decisions.items()}
    assert decided["num_gpus"] == strategy.num_gpus
    assert decided["optimizer"] == context.traits.optimizer.name
    for name in ("global_batch", "seq_len", "precision"):
        assert decided[name] == getattr(context.job, name), name
    model = context.model
    sizes = {"model.num_layers": model.num_blocks, "model.num_heads": model.num_heads}
    world = CheckContext(num_gpus=strategy.num_gpus, decisions=decided | sizes)
    assert [b for rule in FORMAT.rules for b in rule.check(reading.settings, world)] == []


@given(SEEDS)
def test_what_no_file_can_hold_is_refused_with_all_reasons(seed: int) -> None:
    context, strategy = draw(random.Random(seed))
    strategy = replace(strategy, placement="tp-cp-ep-pp-dp", vpp=2)
    with pytest.raises(ExpressError, match=r"(?s)vpp 2.*placement tp-cp-ep-pp-dp"):
        FORMAT.emit(context, strategy)


FOREIGN: dict[str, Any] = {
    "gradient_clipping": 0.5,
    "steps_per_print": 10,
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 100}},
    "zero_optimization.contiguous_gradients": True,
    "zero_optimization.sub_group_size": 1000000,
    "zero_optimization.offload_optimizer.buffer_count": 4,
    "bf16.check_grad_overflow": True,
    "wandb": {"enabled": False, "project": "p"},
    "pipeline.seed_layers": True,
}
OWN: dict[str, Any] = {
    "train_batch_size": 7,
    "train_micro_batch_size_per_gpu": True,
    "gradient_accumulation_steps": 5,
    "zero_optimization.stage": 2,
    "zero_optimization.offload_param.device": "cpu",
    "zero_optimization.offload_optimizer.device": "nvme",
    "zero_optimization.cpu_offload": True,
    "fp16.enabled": True,
    "tensor_parallel.autotp_size": 4,
    "sequence_parallel_size": 2,
    "data_parallel_size": 3,
    "pipeline.stages": 6,
    "expert_parallel.enabled": True,
    "expert_parallel.autoep_size": 2,
    "optimizer.type": "Adam",
    "optimizer.params.lr": 0.001,
    "optimizer.params.momentum": 0.9,
}


@st.composite
def user_files(draw_from: st.DrawFn) -> str:
    """A file with some of a user's own keys and other decisions, commented."""
    chosen = {**FOREIGN, **OWN}
    names = draw_from(st.lists(st.sampled_from(sorted(chosen)), unique=True))
    content: dict[str, Any] = {}
    for name in names:
        place = content
        *above, last = name.split(".")
        for key in above:
            place = place.setdefault(key, {})
        place[last] = chosen[name]
    text = json.dumps(content, indent=draw_from(st.sampled_from([None, 2, 4])))
    return text.replace("\n", " // why\n", 1) + "\n# the end\n"


@given(SEEDS, user_files())
def test_writing_into_a_file_keeps_foreign_keys_and_gives_the_strategy(
    seed: int, text: str
) -> None:
    context, strategy = next(expressible(seed))
    own = emit(context, strategy).files[0].text
    assert write_into(source(own), context, strategy) == own
    written = FORMAT.write_into(source(text), context, strategy)
    reading = read(source(written))
    assert strategy_of(context, dict(reading.decisions)) == canonical(context, strategy)
    before, after = read(source(text)).settings, reading.settings
    if "optimizer" in before:
        assert reading.decisions["optimizer"].value == context.traits.optimizer.name
    kept = [name for name in FOREIGN if name in before]
    assert {name: after[name].value for name in kept} == {name: before[name].value for name in kept}
    spans = dict(spans_of(parse_json("f", text)))
    pieces = [text[slice(*spans[name])] for name in before if name in kept]
    place = 0
    for piece in pieces:
        place = written.find(piece, place)
        assert place >= 0, piece
    assert written.endswith("\n# the end\n")
    assert write_into(source(written), context, strategy) == written
