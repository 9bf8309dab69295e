"""Files of plans whose replicas keep in step otherwise than by plain all-reduces."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.cost.context import Context
from planner.errors import ExpressError
from planner.formats.finding import Finding
from planner.formats.format import Emitted, SourceText, World
from planner.formats.registry import format_names, load_format
from planner.frameworks.registry import profile_names
from planner.frameworks.settings import with_change
from planner.spec.exchange import read_exchange
from planner.spec.strategy import Strategy

Contexts = Callable[..., Context]
Strategies = Callable[..., Strategy]
REPLICAS = {"dp": 8, "zero_stage": 0, "num_micro_batches": 2}


def exchanging(context: Context, text: str) -> Context:
    return replace(context, traits=with_change(context.traits, read_exchange(text)))


@pytest.fixture
def ddp(context_of: Contexts) -> Context:
    return context_of(framework="accelerate", profile="ddp", precision="fp16")


@pytest.fixture
def onebit(context_of: Contexts) -> Context:
    return context_of(framework="deepspeed", profile="trainer-2023", precision="fp16")


def read_back(emitted: Emitted, name: str) -> dict[str, object]:
    file = emitted.files[0]
    reading = load_format(name).read(SourceText(path=file.name, text=file.text))
    assert [finding for finding in reading.findings if finding.severity == "error"] == []
    return {name: value.value for name, value in reading.decisions.items()}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("fp16", "comm_hook=DDPCommunicationHookType.FP16"),
        ("bf16", "comm_hook=DDPCommunicationHookType.BF16"),
        ("powersgd:rank=2", "comm_state_option={'matrix_approximation_rank': 2}"),
        ("local:every=32", "LocalSGD(accelerator, model, local_sgd_steps=32)"),
    ],
)
def test_accelerates_script_is_told_how_replicas_keep_in_step(
    text: str, told: str, ddp: Context, strategy_of: Strategies
) -> None:
    emitted = load_format("accelerate").emitted(exchanging(ddp, text), strategy_of(**REPLICAS))
    row = next(each for each in emitted.decided if told in each.key)
    assert row.why.startswith("changes training: ")
    assert read_back(emitted, "accelerate")["gradient_exchange"] == text


def test_a_plain_plan_says_nothing_of_exchanges(ddp: Context, strategy_of: Strategies) -> None:
    emitted = load_format("accelerate").emitted(ddp, strategy_of(**REPLICAS))
    assert "gradient_exchange" not in emitted.files[0].text
    assert not [each for each in emitted.decided if "changes training" in each.why]


@pytest.mark.parametrize(("name", "kind"), [("adam", "OneBitAdam"), ("lamb", "OneBitLamb")])
def test_deepspeed_gets_its_1_bit_optimizer_and_the_release_that_has_it(
    name: str, kind: str, onebit: Context, strategy_of: Strategies
) -> None:
    job = replace(onebit.job, total_tokens=onebit.job.tokens_per_iteration * 1000)
    context = exchanging(replace(onebit, job=job), f"onebit-{name}:warmup=0.2")
    emitted = load_format("deepspeed").emitted(context, strategy_of(**REPLICAS))
    content = json.loads(emitted.files[0].text)
    assert content["optimizer"] == {"type": kind, "params": {"freeze_step": 200}}
    assert content["training_script"]["profile"] == "trainer-2023"
    found = read_back(emitted, "deepspeed")
    assert found["gradient_exchange"] == f"onebit-{name}:warmup=0.2"
    assert (found["optimizer"], found["profile"]) == ("adam", "trainer-2023")


def test_without_tokens_the_warm_up_is_left_to_the_user(
    onebit: Context, strategy_of: Strategies
) -> None:
    emitted = load_format("deepspeed").emitted(
        exchanging(onebit, "onebit-adam"), strategy_of(**REPLICAS)
    )
    (key,) = [each for each in emitted.open_keys if each.key == "freeze_step"]
    assert "15% of all" in key.what


@pytest.mark.parametrize(("profile", "broken"), [("trainer-2023", False), (None, True)])
def test_a_1_bit_optimizer_is_known_to_the_releases_that_have_it(
    profile: str | None, broken: bool
) -> None:
    rules = {rule.name: rule for rule in load_format("deepspeed").rules}
    text = '{"train_batch_size": 8, "optimizer": {"type": "OneBitAdam"}}'
    reading = load_format("deepspeed").read(SourceText(path="ds.json", text=text))
    decisions = {} if profile is None else {"profile": profile}
    world = World(num_gpus=8, decisions=decisions)
    found: list[Finding] = list(rules["optimizer_is_known"].check(reading.settings, world))
    assert bool(found) == broken


def test_profiles_of_the_schema_are_profiles() -> None:
    schema = load_format("deepspeed").read(
        SourceText(path="ds.json", text='{"training_script": {"profile": "current"}}')
    )
    assert [finding.key for finding in schema.findings] == ["training_script.profile"]
    assert {"trainer-2022", "trainer-2023"} <= set(profile_names("deepspeed"))


@pytest.mark.parametrize("name", format_names())
def test_what_a_format_cannot_say_is_refused_by_name(
    name: str, context_of: Contexts, strategy_of: Strategies
) -> None:
    context = exchanging(context_of(framework="torchtitan"), "diloco:every=100")
    made = load_format(name)
    strategy = strategy_of(dp=8, dp_replicate=2, zero_stage=2)
    with pytest.raises(ExpressError, match="gradient_exchange diloco:every=100"):
        made.emitted(context, strategy)
    with pytest.raises(ExpressError, match="gradient_exchange diloco:every=100"):
        made.written_into(SourceText(path="file", text=""), context, strategy)
