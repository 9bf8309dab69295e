"""Every model of the catalogue has a recipe by name, asks for one, or is refused by name."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.catalog.clusters import load_cluster
from planner.catalog.models import list_models, load_model
from planner.cost.context import Context
from planner.formats.bridge.mapping import recipe_of, recipes
from planner.formats.format import SourceText
from planner.formats.registry import load_format
from planner.query.from_file import Job
from planner.query.layout import complete
from planner.spec.strategy import Strategy

BRIDGE = load_format("bridge")


@pytest.fixture
def emitted(
    context_of: Callable[..., Context], strategy_of: Callable[..., Strategy]
) -> Callable[[str], list[str]]:
    """The command for a model, its missing recipe in words, or why there is none."""

    def emit(name: str) -> list[str]:
        model = load_model(name)
        context = replace(context_of(), model=model)
        if reasons := list(BRIDGE.problems(context)):
            return reasons
        strategy = strategy_of(
            dp=8,
            num_micro_batches=context.job.global_batch // 8,
            layers_per_stage=(model.num_blocks,),
        )
        made = BRIDGE.emit(context, strategy)
        recipe = made.command[made.command.index("--recipe") + 1]
        return [made.variables["RECIPE"] if recipe == "${RECIPE}" else recipe]

    return emit


def test_no_model_is_written_for_a_recipe_that_is_not_its_own(
    emitted: Callable[[str], list[str]],
) -> None:
    known = {row["recipe"] for row in recipes() if row["num_layers"]}
    found = {name: emitted(name) for name in list_models()}
    named = {name: each for name, (each, *_) in found.items() if each in known}
    asked = {name for name, (each, *_) in found.items() if each.startswith("a recipe of your own")}
    refused = found.keys() - named.keys() - asked
    for name in refused:
        assert all(each.startswith(f"model {name}: ") for each in found[name]), name
    assert set(named.values()) == known
    assert {"llama2-13b", "mixtral-8x7b", "gpt3-13b", "qwen2.5-3b"} <= asked
    assert {"bloom-7b1", "opt-13b", "falcon-7b", "bert-base", "t5-11b"} <= refused


@pytest.mark.parametrize(
    ("model", "recipe"),
    [
        ("llama3-8b", "llama3_8b_pretrain_config"),
        ("llama3.1-8b", "llama31_8b_pretrain_config"),
        ("qwen3-30b-a3b", "qwen3_30b_a3b_pretrain_config"),
        ("llama2-13b", ""),
        ("qwen3-coder-480b-a35b", ""),
    ],
)
def test_a_recipe_is_found_by_sizes_and_length(model: str, recipe: str) -> None:
    assert recipe_of(load_model(model)) == recipe
    assert recipe_of(replace(load_model(model), name="my-own")) == recipe


def test_what_neither_a_recipe_nor_megatrons_model_builds_is_refused(
    emitted: Callable[[str], list[str]],
) -> None:
    assert recipe_of(replace(load_model("llama3-8b"), num_layers=31)) == ""
    assert emitted("mpt-7b")[0] == (
        "model mpt-7b: position alibi, and Megatron-Bridge 0.6.2 has no recipe of it"
    )


@pytest.mark.parametrize(("said", "number"), [("", 1), (" model.mtp_num_layers=null", 0)])
def test_a_recipe_that_is_not_told_trains_what_its_model_has(said: str, number: int) -> None:
    degrees = dict.fromkeys(("tensor", "pipeline"), 1) | {"expert": 8}
    words = [f"model.{name}_model_parallel_size={size}" for name, size in degrees.items()]
    words += ["model.context_parallel_size=1 train.micro_batch_size=1 train.global_batch_size=16"]
    run = "torchrun --nproc-per-node 8 run_recipe.py --recipe glm45_air_106b_pretrain_config"
    text = f"{run} {' '.join(words)}{said}\n"
    job = Job(model=load_model("glm-4.5-air"), cluster=load_cluster("1xdgx-h100"))
    made = complete(BRIDGE.read(SourceText(path="run.sh", text=text)), job, "megatron")
    assert made.layout is not None
    assert made.layout.context.job.mtp_layers == number
