"""What Megatron-LM cannot express is refused by name, all at once."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.cost.context import Context
from planner.documents.tree import load_own
from planner.errors import ExpressError
from planner.expr import OF_DATA, faults, names_in, parsed
from planner.formats.bridge.mapping import is_known
from planner.formats.megatron.options import load_options
from planner.formats.megatron.view import MegatronView
from planner.formats.registry import load_format, own_texts
from planner.formats.settings import Named
from planner.spec.strategy import Strategy

MEGATRON = load_format("megatron")
PLAN = Strategy(
    dp=2,
    tp=2,
    pp=2,
    vpp=1,
    cp=1,
    ep=1,
    etp=2,
    zero_stage=1,
    micro_batch=1,
    num_micro_batches=8,
    sequence_parallel=True,
    offload="none",
    layers_per_stage=(2, 2),
    selective_layers_per_stage=(0, 0),
    recompute_layers_per_stage=(0, 0),
)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"recompute_layers_per_stage": (2, 1)}, "recompute_layers_per_stage"),
        ({"selective_layers_per_stage": (2, 0)}, "selective_layers_per_stage"),
        ({"schedule": "zb-h1"}, "schedule: zb-h1"),
        ({"zero_stage": 2}, "zero_stage: 2"),
        ({"offload": "optimizer:nvme"}, "offload: optimizer:nvme"),
        ({"offloaded_layers_per_stage": (1, 0)}, "offloaded_layers_per_stage"),
    ],
)
def test_every_part_is_refused_by_name(
    context_of: Callable[..., Context], changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(ExpressError, match=reason):
        MEGATRON.emit(context_of(), replace(PLAN, **changes))


def test_all_reasons_are_told_at_once(context_of: Callable[..., Context]) -> None:
    plan = replace(PLAN, schedule="gpipe", zero_stage=3, selective_layers_per_stage=(1, 0))
    with pytest.raises(ExpressError) as error:
        MEGATRON.emit(context_of(), plan)
    assert len(str(error.value).splitlines()) == 4


@pytest.mark.parametrize("name", ["bloom-176b", "gpt-j-6b", "bert-base", "t5-11b", "gemma2-9b"])
def test_models_without_options_are_refused(context_of: Callable[..., Context], name: str) -> None:
    context = context_of(model=name)
    layers = context.model.num_blocks
    plan = replace(
        PLAN,
        pp=1,
        layers_per_stage=(layers,),
        selective_layers_per_stage=(0,),
        recompute_layers_per_stage=(0,),
    )
    with pytest.raises(ExpressError, match=f"model {name}"):
        MEGATRON.emit(context, plan)


def test_tables_name_what_there_is() -> None:
    file = Named(MegatronView(settings={}))
    for entry in load_own("planner.formats.megatron", "rules.yaml").values():
        for text, condition in entry["wrong"].items():
            assert not list(faults(parsed(condition), OF_DATA, names_in(parsed(condition))))
            assert text.format_map(file)
            assert [file[name] for name in names_in(parsed(condition))]
    assert own_texts("not_priced", "megatron").keys() <= load_options().keys()
    assert all(map(is_known, own_texts("not_priced", "bridge")))
