"""Overrides of Megatron-Bridge's recipes: recognised, and spoken of in their own keys."""

import pytest

from planner.formats.bridge.format import FORMAT, read
from planner.formats.format import CheckContext, PerChunk, SourceText
from planner.formats.registry import recognised

RUN = "torchrun --nproc-per-node 8 run_recipe.py --recipe a_recipe_of_my_own"


def source(overrides: str) -> SourceText:
    return SourceText(path="run.sh", text=f"{RUN} {overrides}\n")


def test_a_recipe_with_nothing_but_a_mistyped_key_is_recognised() -> None:
    given = source("model.tensor_model_paralel_size=2")
    assert recognised(given) == [FORMAT]
    (finding,) = FORMAT.read(given).findings
    assert finding.rule == "bridge.unknown_key"
    assert "did you mean model.tensor_model_parallel_size" in finding.message


def test_a_key_that_only_the_model_of_a_recipe_can_have_is_a_warning() -> None:
    given = source("model.freeze_vision_model=true model.pipeline_model_parallel_siz=2")
    found = [(each.key, each.severity) for each in FORMAT.read(given).findings]
    assert found == [
        ("model.freeze_vision_model", "warning"),
        ("model.pipeline_model_parallel_siz", "error"),
    ]


def test_a_recipe_of_full_fine_tuning_is_read_with_its_settings() -> None:
    run = RUN.replace("a_recipe_of_my_own", "llama3_70b_sft_config")
    reading = FORMAT.read(SourceText(path="run.sh", text=f"{run} train.micro_batch_size=2\n"))
    read = {name: each.value for name, each in reading.decisions.items()}
    assert read | {"tp": 8, "pp": 4, "cp": 1, "micro_batch": 2, "global_batch": 8} == read
    assert not reading.left_open


def test_overrides_of_earlier_nemo_are_not_of_bridge() -> None:
    text = "python pretrain.py trainer.devices=8 model.tensor_model_parallel_size=2\n"
    assert recognised(SourceText(path="run.sh", text=text)) == []


@pytest.mark.parametrize(
    "run",
    [
        'C="$C $(echo "$O" | tr "\\n" " ")"\nsrun bash -c "$C"',
        'CMD="python run_recipe.py $O"\nsrun bash -c "cd a && $CMD"',
        "O=\nsh -c 'r.py train.micro_batch_size=2 model.tensor_model_parallel_size=$TP'",
    ],
)
def test_overrides_in_a_variable_are_found_however_they_are_handed_on(run: str) -> None:
    overrides = "train.micro_batch_size=2 \\\n model.tensor_model_parallel_size=$TP"
    reading = FORMAT.read(SourceText(path="run.sh", text=f'O="{overrides}"\n{run}\n'))
    assert reading.decisions["micro_batch"].value == 2
    assert list(reading.left_open) == ["tp"]


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        ("model.context_parallel_size=3", {"model.context_parallel_size"}),
        ("model.recompute_granularity=full", {"model.recompute_granularity"}),
    ],
)
def test_rules_speak_of_keys_the_file_could_hold(overrides: str, keys: set[str]) -> None:
    reading = FORMAT.read(SourceText(path="run.overrides", text=overrides))
    world = CheckContext(num_gpus=8, decisions={})
    broken = [each for rule in FORMAT.rules for each in rule.check(reading.settings, world)]
    assert {each.key for each in broken} == keys
    assert not [each for each in broken if "--" in each.message]


def test_what_a_recipe_sets_is_not_known() -> None:
    reading = FORMAT.read(source("train.global_batch_size=3 optimizer.optimizer_cpu_offload=true"))
    world = CheckContext(num_gpus=8, decisions={})
    assert not [each for rule in FORMAT.rules for each in rule.check(reading.settings, world)]
    assert {"tp", "pp", "cp", "ep"} <= set(reading.left_open)
    # Recipes of mixtures leave experts whole, beside 2 ranks of tensor parallelism too.
    stated = {"tensor": 2, "pipeline": 8, "expert": 16}
    told = (f"model.{name}_model_parallel_size={size}" for name, size in stated.items())
    reading = FORMAT.read(source(" ".join(told)))
    world = CheckContext(num_gpus=128, decisions={"model.num_experts": 128})
    assert not [each for rule in FORMAT.rules for each in rule.check(reading.settings, world)]
    assert set(reading.left_open) == {"cp", "etp"}


def test_a_decision_has_the_key_of_the_file() -> None:
    key = "model.virtual_pipeline_model_parallel_size"
    reading = FORMAT.read(source(f"model.pipeline_model_parallel_size=2 {key}=4"))
    assert reading.decisions["vpp"].key == key


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "model.recompute_granularity=full model.recompute_method=uniform",
            {"recompute_layers_per_stage": "all"},
        ),
        (
            (
                "model.recompute_granularity=full model.recompute_method=block "
                "model.recompute_num_layers=3"
            ),
            {"recompute_layers_per_stage": PerChunk(3)},
        ),
        (
            "model.recompute_granularity=selective model.recompute_modules=[core_attn]",
            {"selective_layers_per_stage": "all", "recompute_modules": ("core_attn",)},
        ),
    ],
)
def test_recomputation_of_layers_whose_number_is_the_recipes(
    words: str, expected: dict[str, object]
) -> None:
    even = "model.pipeline_model_parallel_size=4 model.virtual_pipeline_model_parallel_size=2"
    found = read(SourceText(path="run", text=f"{even} {words}")).decisions
    assert {name: found[name].value for name in expected} == expected
    uneven = f"{even} model.account_for_loss_in_pipeline_split=true {words}"
    found = read(SourceText(path="run", text=uneven)).decisions
    assert {name: found[name].value for name in expected} == expected
