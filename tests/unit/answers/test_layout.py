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


def test_the_rest_of_a_layout_has_plain_defaults(llama: Context) -> None:
    strategy = strategy_of(llama, tp=8, pp=2)
    assert strategy.layers_per_stage == (40, 40)
    assert (strategy.recompute, strategy.offload) == ("none", "none")
    assert (strategy.vpp, strategy.cp, strategy.ep, strategy.dp_replicate) == (1, 1, 1, 1)


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


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"offloaded_layers": 0}, "must be all, or at least 1; given 0"),
        ({"offloaded_layers": 81}, "no stage has more than 80 layers; given 81"),
        ({"offloaded_layers": 4, "pp": 2}, "megatron offers it: without pipelining"),
    ],
)
def test_activations_that_cannot_be_offloaded_are_refused(
    request_: dict[str, object], message: str, llama: Context
) -> None:
    assert message in refusal(llama, **{"tp": 8, **request_})["--offload-activations"]


def test_a_framework_that_offloads_no_activations_refuses_to() -> None:
    message = refusal(context_of(framework="deepspeed"), offloaded_layers="all")
    assert message["--offload-activations"].endswith("deepspeed offers it: no")


def test_a_layer_is_recomputed_or_offloaded_and_not_both(llama: Context) -> None:
    messages = refusal(llama, tp=8, recompute="full", recompute_layers=70, offloaded_layers=11)
    assert list(messages) == ["--recompute-layers"]
    assert "more layers than it holds" in messages["--recompute-layers"]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"offload_percent": 0, "offload": "optimizer:host"}, "must be from 1 to 100; given 0"),
        ({"offload_percent": 101, "offload": "optimizer:host"}, "must be from 1 to 100; given 101"),
        ({"offload_percent": 50}, "needs --offload with the optimizer's states; given none"),
    ],
)
def test_a_part_to_offload_is_a_percentage_of_something(
    request_: dict[str, object], message: str, llama: Context
) -> None:
    assert refusal(llama, tp=8, **request_) == {"--offload-percent": message}


def test_a_part_of_the_states_is_offloaded_where_the_framework_can() -> None:
    # DeepSpeed's offload_optimizer.ratio is read under ZeRO 3 only.
    context = context_of(framework="deepspeed")
    part = {"offload": "optimizer:host", "offload_percent": 40}
    assert strategy_of(context, zero_stage=3, **part).offload_percent == 40
    message = refusal(context, zero_stage=2, **part)["--offload-percent"]
    assert message.startswith("offload_percent_offered: ")
    assert "under ZeRO 2" in message


@pytest.mark.parametrize(
    "name", ["tp", "pp", "vpp", "cp", "ep", "dp", "dp_replicate", "micro_batch"]
)
@pytest.mark.parametrize("value", [0, -2])
def test_a_degree_below_one_is_refused(name: str, value: int, llama: Context) -> None:
    messages = refusal(llama, **{name: value})
    assert messages == {
        f"--{name.replace('_', '-')}": f"must be from 1 to 10,000,000; given {value}"
    }


def test_tensor_parallelism_beyond_a_node_is_slow_but_legal(llama: Context) -> None:
    assert strategy_of(llama, tp=16).tp == 16


@pytest.mark.parametrize("value", [10**7 + 1, 10**20])
def test_absurd_degrees_are_refused_before_anything_is_built(value: int, llama: Context) -> None:
    assert set(refusal(llama, pp=value)) == {"--pp"}


def test_every_bad_option_is_reported_at_once(llama: Context) -> None:
    messages = refusal(
        llama, tp=0, micro_batch=-1, recompute="some", recompute_layers=-3, offload="disk"
    )
    assert set(messages) == {
        "--tp", "--micro-batch", "--recompute", "--recompute-layers", "--offload",
    }  # fmt: skip
    assert "'some'; allowed are none, selective, full" in messages["--recompute"]
    assert "optimizer:host" in messages["--offload"]
    assert "-3" in messages["--recompute-layers"]


@pytest.mark.parametrize(
    ("request_", "option", "rule", "numbers"),
    [
        ({"tp": 3, "dp": 8}, "--tp", "tp_divides_heads", ("tp 3", "64 heads")),
        ({"tp": 8, "pp": 2, "dp": 4}, "--dp", "within_cluster", ("dp 4", "= 64 GPUs", "has 32")),
        (
            {"tp": 8, "pp": 2, "zero_stage": 2},
            "--zero-stage",
            "zero_stage_offered",
            ("ZeRO 2", "0, 1"),
        ),
        ({"ep": 4}, "--ep", "ep_divides_experts", ("ep 4", "no experts")),
    ],
)
def test_an_impossible_layout_names_the_rule_with_its_numbers(
    request_: dict[str, object], option: str, rule: str, numbers: tuple[str, ...], llama: Context
) -> None:
    with pytest.raises(InputError) as caught:
        resolve(llama, requested(**request_))  # type: ignore[arg-type]
    (problem,) = [one for one in caught.value.problems if one.message.startswith(f"{rule}: ")]
    assert problem.key == option
    assert all(number in problem.message for number in numbers)


def test_deepspeed_shards_no_weights_under_pipelining() -> None:
    context = context_of(framework="deepspeed")
    assert strategy_of(context, pp=1, zero_stage=3).zero_stage == 3
    message = refusal(context, pp=2, zero_stage=3)["--zero-stage"]
    assert message.startswith("zero_stage_offered: ")
    assert "ZeRO 3 with pp 2: deepspeed offers 0, 1 there" in message


@pytest.mark.parametrize(
    ("layers", "reason"),
    [
        ((40, 41), "must add up to 80 layers; given 81"),
        ((80, 0), "every stage needs a layer; given 0"),
        ((27, 27, 26), "needs one number per stage: 2; given 3"),
    ],
)
def test_stages_that_do_not_hold_the_model_are_refused(
    layers: tuple[int, ...], reason: str, llama: Context
) -> None:
    assert refusal(llama, tp=8, pp=2, layers_per_stage=layers)["--layers-per-stage"] == reason


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
