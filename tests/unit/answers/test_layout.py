"""A layout given degree by degree: what is filled in, and what is refused with which numbers."""

import pytest
from contexts import context_of

from planner.answers.layout import default_chunks, layout_chunks, requested, resolve
from planner.cost.context import Context
from planner.errors import InputError
from planner.formats.megatron.options import per_stage
from planner.frameworks.settings import with_optimizer
from planner.search.space.interleaving import default_layers
from planner.spec.strategy import FIELD_DEFAULTS, SEARCHED_FIELDS, STRATEGY_FIELDS, Strategy


def strategy_of(context: Context, **request: object) -> Strategy:
    return resolve(context, requested(**request))[1]  # type: ignore[arg-type]


def refusal(context: Context, **request: object) -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        resolve(context, requested(**request))  # type: ignore[arg-type]
    assert {problem.where for problem in caught.value.problems} == {"command line"}
    return {problem.key: problem.message for problem in caught.value.problems}


@pytest.fixture(scope="module")
def llama() -> Context:
    """80 layers, 64 heads, 8 of keys and values, on 4 nodes of 8."""
    return context_of(model="llama3.1-70b", cluster="4xdgx-h100", global_batch=64, seq_len=8192)


@pytest.mark.parametrize(
    ("num_layers", "pp", "expected"),
    [(80, 1, (80,)), (80, 4, (20, 20, 20, 20)), (61, 4, (15, 15, 15, 16)), (7, 4, (1, 2, 2, 2))],
)
def test_what_even_stages_leave_over_goes_to_the_last_ones(
    num_layers: int, pp: int, expected: tuple[int, ...]
) -> None:
    assert default_layers(num_layers, pp, vpp=1) == expected


def test_data_parallelism_takes_what_is_left_of_the_cluster(llama: Context) -> None:
    # 32 / (8 x 2) = 2; 64 sequences over 2 replicas are 32 micro-batches of one.
    strategy = strategy_of(llama, tp=8, pp=2)
    assert (strategy.dp, strategy.num_micro_batches, strategy.num_gpus) == (2, 32, 32)
    assert strategy_of(llama, tp=2, pp=2, cp=2).dp == 4


def test_only_what_is_said_to_follow_is_not_neutral_where_it_is_left_out(llama: Context) -> None:
    strategy = strategy_of(llama, tp=8, pp=2)
    filled = {
        name for name in SEARCHED_FIELDS if getattr(strategy, name) != FIELD_DEFAULTS[name]
    } - {"tp", "pp"}
    assert filled == {"dp", "etp", "zero_stage", "sequence_parallel"}
    assert filled < {name for name in SEARCHED_FIELDS if STRATEGY_FIELDS[name].follows}


def test_sequence_parallelism_comes_with_tensor_parallelism_where_offered(llama: Context) -> None:
    assert strategy_of(llama, tp=8).sequence_parallel
    assert not strategy_of(llama, tp=8, sequence_parallel=False).sequence_parallel
    assert not strategy_of(llama, pp=2).sequence_parallel
    assert not strategy_of(context_of(framework="deepspeed"), tp=2).sequence_parallel


@pytest.mark.parametrize(
    ("framework", "profile", "pp", "expected"),
    [
        ("megatron", "current", 1, 1),
        ("deepspeed", "current", 1, 3),
        ("deepspeed", "megatron", 2, 1),
        ("torchtitan", "current", 1, 3),
    ],
)
def test_the_zero_stage_is_the_highest_the_framework_offers(
    framework: str, profile: str, pp: int, expected: int
) -> None:
    context = context_of(framework=framework, profile=profile)
    assert strategy_of(context, pp=pp).zero_stage == expected


def test_the_zero_stage_is_one_the_optimizer_runs_under() -> None:
    context = context_of()
    sgd = Context(
        model=context.model,
        job=context.job,
        cluster=context.cluster,
        traits=with_optimizer(context.traits, "sgd"),
    )
    assert strategy_of(context).zero_stage == 1
    assert strategy_of(sgd).zero_stage == 0
    message = refusal(sgd, zero_stage=1)["--zero-stage"]
    assert "optimizer_runs_under_zero" in message
    assert "sgd under ZeRO 1: under megatron it runs under 0" in message


def test_the_batch_is_rounded_up_to_whole_micro_batches(llama: Context) -> None:
    # dp 2, micro-batch 5: ceil(64 / 10) = 7 micro-batches, 70 sequences.
    context, strategy = resolve(llama, requested(tp=8, pp=2, micro_batch=5))
    assert strategy.num_micro_batches == 7
    assert context.job.global_batch == 70
    assert llama.job.global_batch == 64


def test_a_batch_that_was_given_is_not_rounded(llama: Context) -> None:
    message = refusal(llama, tp=8, pp=2, micro_batch=5, global_batch=64)["--micro-batch"]
    assert "micro_batch_divisible" in message
    assert "micro-batch 5 does not divide the 32 sequences" in message


def test_recomputation_applies_to_all_layers_or_to_as_many_as_given(llama: Context) -> None:
    layout = {"tp": 8, "pp": 4, "layers_per_stage": (14, 22, 22, 22)}
    full = strategy_of(llama, recompute="full", **layout)
    assert full.recompute_layers_per_stage == (14, 22, 22, 22)
    some = strategy_of(llama, recompute="selective", recompute_layers=20, **layout)
    assert some.selective_layers_per_stage == (14, 20, 20, 20)
    assert some.recompute_layers_per_stage == (0, 0, 0, 0)


def test_activations_of_all_layers_or_of_as_many_as_given_are_offloaded(llama: Context) -> None:
    layout = {"tp": 8, "recompute": "none"}
    assert strategy_of(llama, **layout).offloaded_layers_per_stage == ()
    assert strategy_of(llama, **layout, offloaded_layers="all").policy_counts[-1] == (80,)
    some = strategy_of(llama, tp=8, recompute="full", recompute_layers=20, offloaded_layers=60)
    assert some.policy_counts == ((0,), (20,), (60,))


def test_a_part_of_the_states_is_offloaded_where_the_framework_can() -> None:
    # DeepSpeed's offload_optimizer.ratio is read under ZeRO 3 only.
    context = context_of(framework="deepspeed")
    part = {"offload": "optimizer:host", "offload_percent": 40}
    assert strategy_of(context, zero_stage=3, **part).offload_percent == 40
    message = refusal(context, zero_stage=2, **part)["--offload-percent"]
    assert message.startswith("offload_percent_offered: ")
    assert "under ZeRO 2" in message


def test_a_layout_is_taken_as_written() -> None:
    assert layout_chunks("Et|(tt|)*2tmL", 6) == (1, 2, 2, 1)
    assert per_stage(layout_chunks("Et*4|(t*4|)*14tmL", 61), 4) == (16, 16, 16, 13)


def test_a_cut_layout_goes_on_as_it_began() -> None:
    assert layout_chunks("Et*8|t*8|...", 61) == (8,) * 7 + (5,)
    assert layout_chunks("Et*4|t*4|t*4|...", 16) == (4, 4, 4, 4)


@pytest.mark.parametrize(
    ("num_layers", "pp", "vpp", "chunks"),
    [
        (80, 4, 1, (20, 20, 20, 20)),
        (126, 4, 8, (3, *[4] * 30, 3)),
        (94, 8, 1, (11, *[12] * 6, 11)),
        (61, 4, 1, (16, 15, 15, 15)),
        (7, 1, 1, (7,)),
    ],
)
def test_without_a_layout_embedding_and_head_count_where_that_divides(
    num_layers: int, pp: int, vpp: int, chunks: tuple[int, ...]
) -> None:
    assert default_chunks(num_layers, pp, vpp) == chunks


@pytest.mark.parametrize(("num_layers", "pp", "vpp"), [(61, 4, 4), (31, 2, 8), (45, 4, 3)])
def test_chunks_hold_every_layer_where_nothing_divides(num_layers: int, pp: int, vpp: int) -> None:
    chunks = default_chunks(num_layers, pp, vpp)
    assert len(chunks) == pp * vpp
    assert sum(chunks) == num_layers
    assert max(chunks) == -(-num_layers // (pp * vpp))
