"""Recipes as plans: their software and layout, the nearest to a question, its place in rows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from contexts import context_of, priced
from places import assert_places

from planner.answers.recipe import nearest_recipe, place, recipe_strategy, recipe_traits
from planner.catalog.models import load_model
from planner.catalog.recipes import Recipe, find_recipe, load_recipes
from planner.cost.context import Context
from planner.frameworks.registry import load_traits
from planner.query.like import priced_problem, recipe_cluster, recipe_gpus
from planner.spec.job import Precision
from planner.spec.strategy import Strategy
from planner.units import GIB

H100 = "llama3_8b_pretrain_8gpu_h100_bf16"
CASES = yaml.safe_load(Path(__file__).with_name("recipes.yaml").read_text("utf-8"))


def question(
    model: str, cluster: str, *, batch: int = 128, precision: Precision = "bf16"
) -> Context:
    asked = {"model": model, "cluster": cluster, "profile": "bridge", "precision": precision}
    return context_of(**asked, global_batch=batch, seq_len=8192)


def strategy_of(name: str, **changes: object) -> Strategy:
    recipe = replace(find_recipe(name), **changes)  # type: ignore[arg-type]
    model = load_model(recipe.model)
    return recipe_strategy(recipe, model, recipe_gpus(recipe), recipe.global_batch)


def test_as_many_layers_are_recomputed_as_are_named() -> None:
    strategy = strategy_of("MI355X/deepseek_v3-BF16-pretrain")
    assert sum(strategy.layers_per_stage) == 61
    assert sum(strategy.recompute_layers_per_stage) == 21


@pytest.mark.parametrize(
    ("name", "changes", "places"),
    [pytest.param(*row, id=claim) for claim, rows in CASES.items() for row in rows],
)
def test_a_recipe_is_a_layout(name: str, changes: dict[str, Any], places: dict[str, Any]) -> None:
    assert_places(strategy_of(name, **changes), places)


@pytest.mark.parametrize(("gpus", "batch"), [(7, 128), (8, 130)])
def test_what_does_not_divide_is_a_reason(gpus: int, batch: int) -> None:
    recipe = find_recipe(H100)
    with pytest.raises(ValueError, match=r"do(es)? not divide"):
        recipe_strategy(recipe, load_model(recipe.model), gpus, batch)


def test_gpus_are_those_stated_unless_the_experts_need_more() -> None:
    assert recipe_gpus(find_recipe(H100)) == 8
    assert recipe_gpus(find_recipe("deepseek_v3_pretrain_64gpu_h100_bf16")) == 512
    assert recipe_gpus(find_recipe("MI300X/deepseek_v2-BF16-pretrain")) == 32


@pytest.mark.parametrize("recipe", load_recipes(), ids=lambda recipe: recipe.recipe)
def test_every_recipe_has_software_and_whole_nodes(recipe: Recipe) -> None:
    cluster, traits = recipe_cluster(recipe), recipe_traits(recipe)
    assert cluster.num_accelerators == recipe_gpus(recipe)
    assert cluster.num_nodes * cluster.node.num_accelerators == cluster.num_accelerators
    assert traits.optimizer.name == recipe.optimizer


def test_the_runtime_is_laid_over_the_profile_and_adapters_are_trained() -> None:
    places = {
        "profile": "bridge",
        "kernels.cuda_graph_fraction": 1.0,
        "overlap.expert_all_to_all_overlap": "batches",
        "overlap.tensor_parallel_overlap": "none",
    }
    assert_places(recipe_traits(find_recipe("deepseek_v3_pretrain_256gpu_gb200_fp8mx")), places)
    training = recipe_traits(find_recipe("llama3_70b_peft_8gpu_h100_bf16")).training
    assert training.words == "lora of rank 16 on q,k,v"


def test_recipes_of_adapters_are_priced_but_those_of_latent_attention() -> None:
    assert not any(priced_problem(recipe) for recipe in load_recipes())
    latent = replace(find_recipe("llama3_70b_peft_8gpu_h100_bf16"), model="deepseek-v3")
    assert "lora of latent attention is not modelled" in priced_problem(latent)


def test_the_nearest_recipe_is_of_this_architecture_and_accelerator() -> None:
    found = nearest_recipe(question("llama3.1-8b", "1xdgx-h100"))
    assert found == find_recipe(H100)
    assert nearest_recipe(question("llama3-8b", "1xdgx-a100-640")) is None
    assert nearest_recipe(question("llama2-7b", "1xdgx-h100")) is None


def test_the_nearest_recipe_is_near_in_gpus_then_of_the_precision() -> None:
    assert nearest_recipe(question("llama3-8b", "4xdgx-h100", precision="fp8")).precision == "fp8"
    assert nearest_recipe(question("llama3-8b", "8xdgx-h100")) is None
    deepspeed = load_traits("deepspeed", "current")
    assert nearest_recipe(replace(question("llama3-8b", "1xdgx-h100"), traits=deepspeed)) is None


def test_a_layout_among_the_rows_is_found_with_its_knobs_apart() -> None:
    context, recipe = question("llama3-8b", "1xdgx-h100"), find_recipe(H100)
    own = recipe_strategy(recipe, context.model, 8, 128)
    better = replace(own, dp=8, cp=1, num_micro_batches=16)
    knob = replace(own, offload="optimizer:host", offload_percent=25)
    rows = [priced(context, better), priced(context, knob)]
    found = place(context, recipe, rows)
    assert found.row == 2
    assert found.slower_fraction == pytest.approx(
        found.estimate.iter_time_s / rows[0].estimate.iter_time_s - 1.0
    )
    assert place(context, recipe, rows[:1]).row is None


def test_what_does_not_fit_says_by_how_much_and_whether_its_own_software_would() -> None:
    recipe = find_recipe("llama31_405b_pretrain_1024gpu_h100_bf16")
    context = question("llama3.1-405b", "128xdgx-h100", batch=1536)
    assert place(context, recipe).missing_bytes == 0.0
    current = replace(context, traits=load_traits("megatron", "current"))
    found = place(current, recipe)
    assert found.missing_bytes == pytest.approx(3.1 * GIB, abs=0.5 * GIB)
    assert found.fits_its_own


def test_what_cannot_run_has_the_reason() -> None:
    context, recipe = question("llama3-8b", "1xdgx-h100", batch=129), find_recipe(H100)
    assert place(context, recipe).problem == "batch 129 does not divide by dp 4 x micro-batch 1"
    vpp = place(question("llama3-8b", "1xdgx-h100"), replace(recipe, vpp=3, cp=1))
    assert vpp.problem.startswith("layers_fill_chunks")
