"""Which of Megatron-Bridge's recipes pretrains a model of some sizes, or trains adapters of it.

``recipes.csv`` has those of release 0.6.2 (megatron/bridge/recipes) whose model can be described
here, with its sizes; the vocabulary of GPT-3's is its tokenizer's.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources

from planner.cost.context import Context
from planner.formats.megatron.shape import shape_reasons
from planner.spec.model import ModelSpec
from planner.spec.training import FULL, Training

RELEASE = "0.6.2"
_NAME, _ADAPTERS, _LONGEST = "recipe", "adapters", "max_seq_len"


@cache
def recipes() -> Sequence[Mapping[str, str]]:
    """Rows of the table: the recipe and its model's sizes by the names of a model file."""
    path = resources.files(__package__).joinpath("recipes.csv")
    return tuple(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def own_recipe(training: Training) -> str:
    """What the user has to bring where there is none."""
    task = "peft" if training.is_frozen else "pretrain"
    return (
        "a recipe of your own that builds the model, exported by megatron.bridge.recipes, "
        f"with {task} in its name: Megatron-Bridge {RELEASE} has none of these sizes"
    )


def recipe_of(model: ModelSpec, training: Training = FULL) -> str:
    """The recipe of the model, of several the one for sequences as long; empty: there is none.

    Models that differ in how positions are scaled, not in sizes, share recipes.
    """
    own = vars(model) | (vars(model.moe) if model.moe else {})
    shape = {key: str(value) for key, value in own.items()}
    fitting = [
        row
        for row in recipes()
        if all(
            shape.get(key, "") == row[key] for key in row if key not in (_NAME, _ADAPTERS, _LONGEST)
        )
    ]
    fitting.sort(key=lambda row: row[_LONGEST] != shape[_LONGEST])
    return fitting[0][_ADAPTERS if training.is_frozen else _NAME] if fitting else ""


def unbuilt(context: Context) -> Iterator[str]:
    """Why no recipe builds the model: there is none, and Megatron's GPT model is another."""
    if not recipe_of(context.model):
        for reason in shape_reasons(context):
            yield f"{reason}, and Megatron-Bridge {RELEASE} has no recipe of it"
