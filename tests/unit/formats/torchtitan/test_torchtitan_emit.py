"""What torchtitan's words cannot say is refused by name, all of it at once."""

from dataclasses import replace

import contexts
import pytest

from planner.cost.context import Context
from planner.errors import ExpressError
from planner.formats.format import SourceText
from planner.formats.torchtitan.format import FORMAT
from planner.frameworks.settings import with_optimizer
from planner.spec.strategy import Strategy

PLAN = Strategy(
    dp=8,
    tp=2,
    pp=1,
    vpp=1,
    cp=1,
    ep=1,
    etp=2,
    zero_stage=3,
    micro_batch=1,
    num_micro_batches=8,
    sequence_parallel=True,
    offload="none",
    layers_per_stage=(32,),
    selective_layers_per_stage=(0,),
    recompute_layers_per_stage=(32,),
)
PIPELINE = replace(
    PLAN,
    dp=4,
    pp=2,
    num_micro_batches=16,
    layers_per_stage=(16, 16),
    recompute_layers_per_stage=(0, 0),
    selective_layers_per_stage=(0, 0),
)


def context_of(model: str = "llama3-8b", **others: object) -> Context:
    return contexts.context_of(
        model=model,
        cluster="2xdgx-h100",
        framework="torchtitan",
        global_batch=64,
        seq_len=others.pop("seq_len", 8192),
        **others,
    )


@pytest.mark.parametrize(
    ("base", "changes", "reason"),
    [
        (PLAN, {"zero_stage": 1}, "ZeRO stage 1"),
        (PLAN, {"offload": "optimizer:host"}, "offload optimizer:host"),
        (PLAN, {"offload": "optimizer+parameters:host", "offload_percent": 50}, "50 %"),
        (PLAN, {"placement": "tp-cp-ep-pp-dp"}, "placement"),
        (PLAN, {"ep": 2}, "etp 2 with ep 2 and tp 2: .* whole under expert"),
        (PLAN, {"etp": 1}, "etp 1 with ep 1 and tp 2: .* split as other"),
        (PLAN, {"tp": 16, "dp": 1}, "splits key and value heads whole"),
        (PLAN, {"recompute_layers_per_stage": (16,)}, "one policy for all layers"),
        (PLAN, {"offloaded_layers_per_stage": (4,)}, "activations on the host"),
        (PLAN, {"schedule": "gpipe"}, "on one stage"),
        (PIPELINE, {"schedule": "zb-h1"}, "schedule zb-h1"),
        (PIPELINE, {"schedule": "zb-v", "vpp": 2}, "without compiled blocks"),
        (PIPELINE, {"num_micro_batches": 1}, "1 micro-batches"),
        (PIPELINE, {"num_micro_batches": 5, "vpp": 2}, "equal rounds"),
        (
            PLAN,
            {
                "recompute_layers_per_stage": (0,),
                "selective_layers_per_stage": (32,),
                "recompute_modules": ("core_attn",),
            },
            "recomputation of core_attn",
        ),
    ],
)
def test_what_words_cannot_say_is_refused_by_name(
    base: Strategy, changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(ExpressError, match=reason):
        FORMAT.emit(context_of(), replace(base, **changes))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "gpt2-xl", "seq_len": 1024}, "its norms"),
        ({"model": "gpt2-xl", "seq_len": 1024}, "its MLP"),
        ({"precision": "fp8"}, "precision fp8"),
        ({"model": "mixtral-8x7b", "precision": "mxfp8"}, "no such config of mixtral-8x7b"),
        ({"model": "deepseek-v3", "seq_len": 65536}, "allows 16384"),
        ({"profile": "2024"}, "profile 2024: torchtitan's files start what current and eager"),
    ],
)
def test_models_and_precisions_it_has_not_are_refused(
    changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(ExpressError, match=reason):
        FORMAT.emit(context_of(**changes), PLAN)


def test_tied_models_are_not_pipelined() -> None:
    with pytest.raises(ExpressError, match="tied embeddings"):
        FORMAT.emit(context_of("llama3.2-1b"), PIPELINE)


def test_every_reason_is_given_at_once() -> None:
    bad = replace(PLAN, zero_stage=0, schedule="gpipe", offload="optimizer:nvme")
    with pytest.raises(ExpressError) as caught:
        FORMAT.emit(context_of("gpt2-xl", seq_len=1024), bad)
    for word in ("ZeRO stage 0", "schedule gpipe", "optimizer:nvme", "model gpt2-xl"):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("model", "precision", "config"),
    [
        ("llama3-8b", "bf16", "llama3_8b"),
        ("llama3-8b", "mxfp8", "llama3_8b_mxfp8"),
        ("llama3-70b", "bf16", "llama3_70b"),
        ("qwen3-30b-a3b", "bf16", "qwen3_30b_a3b"),
        ("deepseek-v3", "bf16", "deepseek_v3_671b"),
        ("deepseek-v2-lite", "bf16", "deepseek_v3_16b"),
        ("gpt-oss-20b", "bf16", "gpt_oss_20b"),
        ("llama3.1-405b", "bf16", "llama3_1_405b_126_layers"),
        ("mixtral-8x7b", "bf16", "mixtral_8x7b_32_layers"),
    ],
)
def test_the_config_with_the_models_shape_is_named(model: str, precision: str, config: str) -> None:
    context = context_of(model, precision=precision)
    layers = (context.model.num_layers,)
    plan = replace(PLAN, layers_per_stage=layers, recompute_layers_per_stage=layers)
    emitted = FORMAT.emit(context, plan)
    assert emitted.words[emitted.words.index("--config") + 1] == config
    is_written = config.endswith("_layers")
    assert [file.name for file in emitted.files][1:] == ["planner_config.py"] * is_written


def test_a_module_is_written_where_the_config_is_made_for_shorter_sequences() -> None:
    plan = replace(PLAN, layers_per_stage=(64,), recompute_layers_per_stage=(64,))
    emitted = FORMAT.emit(context_of("qwen3-32b", seq_len=65536), plan)
    assert "MAX_SEQ_LEN = 65536" in emitted.files[1].text


def test_bf16_states_of_the_optimizer_are_a_word() -> None:
    context = context_of()
    context = replace(context, traits=with_optimizer(context.traits, "adam-bf16"))
    assert "fused_opt_states_bf16" in FORMAT.emit(context, PLAN).words


def test_written_modules_are_python() -> None:
    emitted = FORMAT.emit(context_of("mixtral-8x7b"), PLAN)
    compile(emitted.files[1].text, emitted.files[1].name, "exec")


def test_the_policy_is_the_last_word() -> None:
    assert FORMAT.emit(context_of(), PLAN).words[-1] == "activation-checkpoint:full"


def test_every_decision_has_its_reason() -> None:
    emitted = FORMAT.emit(context_of(), PIPELINE)
    assert all(each.why for each in emitted.decided)
    assert "layers per stage: 16, 16" in [each.why for each in emitted.decided]


def test_a_plan_on_other_gpus_than_the_script_starts_is_refused_with_its_variable() -> None:
    def source(number: int) -> SourceText:
        text = f"NGPU={number} MODULE=llama3 CONFIG=llama3_8b ./run_train.sh\n"
        return SourceText(path="train.sh", text=text)

    assert "--parallelism.tensor_parallel_degree 2" in FORMAT.write_into(
        source(16), context_of(), PLAN
    )
    with pytest.raises(ExpressError, match=r"with NGPU of 8 .* 8 processes, the plan needs 16"):
        FORMAT.write_into(source(8), context_of(), PLAN)
