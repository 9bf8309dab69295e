"""A plan written into overrides changes what differs; the rest is the recipe's."""

from collections.abc import Callable

import pytest

from planner.cost.context import Context
from planner.formats.format import SourceText
from planner.formats.registry import load_format
from planner.formats.shell.script import read_script
from planner.spec.strategy import Strategy

BRIDGE = load_format("bridge")
STATED = (
    "model.tensor_model_parallel_size=8\nmodel.context_parallel_size=1\n"
    "model.recompute_granularity=full\nmodel.recompute_method=uniform\n"
    "model.recompute_num_layers=1\ntrain.micro_batch_size=1\n++train.global_batch_size=16\n"
    "ddp.use_distributed_optimizer=true\ntrain.train_iters=7\n"
)
LAUNCH = "srun --nodes 1 bash -c"


@pytest.fixture
def written(
    context_of: Callable[..., Context], strategy_of: Callable[..., Strategy]
) -> Callable[..., str]:
    """Write a plan into a text."""

    def write(text: str, **decisions: object) -> str:
        plan = {"dp": 4, "tp": 2, "num_micro_batches": 4, **decisions}
        source = SourceText(path="run.sh", text=text)
        return BRIDGE.write_into(source, context_of(), strategy_of(**plan))

    return write


def test_what_changes_is_all_that_is_written(written: Callable[..., str]) -> None:
    full = (4,)
    after = written(STATED, recompute_layers_per_stage=full)
    assert after == STATED.replace("size=8", "size=2")


def test_what_a_file_states_and_a_plan_has_not_is_taken_back(written: Callable[..., str]) -> None:
    changed = {"size=8": "size=2", "=full": "=null", "=uniform": "=null", "layers=1": "layers=null"}
    after = STATED
    for before, now in changed.items():
        after = after.replace(before, now)
    assert written(STATED) == after


@pytest.mark.parametrize("layout", ["Et*3|tL", "Et|t*2|tL", "Et|t||t|tL"])
def test_a_layout_made_for_other_stages_goes(written: Callable[..., str], layout: str) -> None:
    key = "model.pipeline_model_parallel_layout"
    text = f"{STATED}model.pipeline_model_parallel_size=2\n'{key}={layout}'\n"
    even = {"dp": 1, "pp": 4, "num_micro_batches": 16, "layers_per_stage": (1,) * 4}
    policies = dict.fromkeys(NONE, (0,) * 4)
    assert f"{key}=null" in written(text, **even, **policies).splitlines()


def test_graphs_of_a_recipe_do_not_stand_beside_layers_recomputed_in_full(
    written: Callable[..., str],
) -> None:
    off = "model.cuda_graph_impl=none"
    bare = STATED.replace("=full", "=null")
    assert off in written(bare, recompute_layers_per_stage=(4,)).splitlines()
    assert off not in written(bare, selective_layers_per_stage=(4,))


def test_a_sign_before_a_key_stays(written: Callable[..., str]) -> None:
    after = written(STATED.replace("batch_size=16", "batch_size=64"))
    assert "++train.global_batch_size=16\n" in after


def test_overrides_that_another_shell_reads_again_are_quoted_for_it(
    written: Callable[..., str],
) -> None:
    words = STATED.replace("\n", " ")
    script = f'{LAUNCH} "python run_recipe.py --recipe r {words}"\n'
    assert "model.tensor_model_parallel_size=2 " in written(script)
    layout = {"dp": 2, "pp": 2, "num_micro_batches": 8, "layers_per_stage": (3, 1), **NONE}
    read = read_script(SourceText(path="run.sh", text=written(script, **layout))).commands
    words = [word.text for each in read for word in each.words]
    assert "model.pipeline_model_parallel_layout='Et*3|tL'" in words


NONE = {"selective_layers_per_stage": (0, 0), "recompute_layers_per_stage": (0, 0)}
