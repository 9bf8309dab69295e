"""Models that files state: built from their words, compared with --model word by word."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from planner.catalog import list_models
from planner.catalog.models import load_model
from planner.check.check import check_file
from planner.check.result import FileResult
from planner.cost.context import Context
from planner.formats.format import SourceText
from planner.formats.megatron.format import read
from planner.formats.megatron.model import shape_choices, shape_reasons
from planner.formats.megatron.options import words_of
from planner.formats.registry import programs
from planner.frameworks.registry import load_traits, stack_named
from planner.query.from_file import Request
from planner.query.values import Values, model_mismatches

LLAMA = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 8 --normalization RMSNorm --swiglu "
    "--disable-bias-linear --position-embedding-type rope --max-position-embeddings 8192 "
    "--untie-embeddings-and-output-weights --vocab-size 128256 --seq-length 8192 "
    "--micro-batch-size 1 --global-batch-size 64 --bf16 --use-distributed-optimizer "
    "--recompute-granularity full --recompute-method uniform "
    "--recompute-num-layers 1"
)
PROGRAMS = yaml.safe_load(Path(__file__).with_name("other_programs.yaml").read_text("utf-8"))
Check = Callable[..., FileResult]


@pytest.fixture
def check(tmp_path: Path) -> Check:

    def of(words: str, name: str = "train.sh", **asked: str) -> FileResult:
        path = tmp_path / name
        is_script = name.endswith(".sh")
        path.write_text(f"torchrun --nproc_per_node 8 {words}\n" if is_script else words)
        request = Request(**({"cluster": "1xdgx-h100", "with_advice": False} | asked))  # type: ignore[arg-type]
        return check_file(str(path), request)

    return of


def errors(result: FileResult) -> list[tuple[str, str]]:
    return [(one.rule, one.key) for one in result.findings if one.severity == "error"]


def test_a_script_that_describes_its_model_needs_none(check: Check) -> None:
    stated, named = (
        check(f"pretrain_gpt.py {LLAMA}"),
        check(f"pretrain_gpt.py {LLAMA}", model="llama3-8b"),
    )
    assert stated.figures == named.figures is not None
    assert not errors(stated)


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        (" --swiglu", "", "--swiglu"),
        ("type rope", "type learned_absolute", "--position-embedding-type"),
        (" --untie-embeddings-and-output-weights", "", "--untie-embeddings-and-output-weights"),
        ("--hidden-size 4096", "--hidden-size 5120", "--hidden-size"),
        ("RMSNorm", "LayerNorm", "--normalization"),
        (" --disable-bias-linear", "", "--disable-bias-linear"),
    ],
)
def test_every_word_of_another_model_is_found(check: Check, old: str, new: str, key: str) -> None:
    found = errors(check(f"pretrain_gpt.py {LLAMA.replace(old, new)}", model="llama3-8b"))
    assert ("job.model", key) in found


def test_another_top_k_is_found() -> None:
    words = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --num-experts 8 "
    reading = read(SourceText(path="a.args", text=f"{words} --moe-router-topk 3"))
    found = model_mismatches(Values(reading), load_model("mixtral-8x7b"))
    assert "--moe-router-topk" in [place.key for place, _ in found]


@pytest.mark.parametrize(
    "name", [n for n in list_models() if n.startswith(("llama3", "qwen", "mi", "nemotron", "deep"))]
)
def test_what_is_emitted_describes_the_model(name: str, context_of: Callable[..., Context]) -> None:
    model = load_model(name)
    context = context_of(model=model, seq_len=1024)
    if list(shape_reasons(context)):
        pytest.skip("Megatron builds none of this shape")
    said = {each.key: each.value for each in shape_choices(context)}
    if "--mamba-num-heads" in said:
        said["--hybrid-layer-pattern"] = model.layer_pattern
    words = [word for key, value in said.items() for word in words_of(key, value)]
    reading = read(SourceText(path="a.args", text=shlex.join(words)))
    assert reading.own_model is not None
    assert list(model_mismatches(Values(reading), model)) == []
    small = model if model.mixer is None else replace(model, mixer=replace(model.mixer, key_dim=8))
    found = [place.key for place, _ in model_mismatches(Values(reading), small)]
    assert bool(found) == (model.mixer is not None)


def test_a_fork_is_one_note(check: Check) -> None:
    words = f"pretrain_gpt.py {LLAMA} --deepspeed --zero-stage 1 --no-pipeline-parallel --sqd"
    found = check(words).findings
    assert [(one.rule, one.severity) for one in found] == [("megatron.made_for", "note")]
    assert "Megatron-DeepSpeed" in found[0].message


@pytest.mark.parametrize(
    ("more", "run_by", "profile"),
    [
        ("--use-fused-swiglu --tokenizer-name-or-path a", "MindSpeed", "mindspeed"),
        ("--trigger-path a", "Swiss AI's Megatron-LM", None),
        ("--enable-gpt-oss", "", None),
        ("", "", None),
    ],
)
def test_what_adds_to_megatron_is_read_as_it(
    check: Check, more: str, run_by: str, profile: str | None
) -> None:
    words = f"pretrain_gpt.py {LLAMA} {more}"
    reading = read(SourceText(path="a.sh", text=f"torchrun --nproc_per_node 8 {words}"))
    assert reading.decisions["micro_batch"].value == 1
    assert (reading.run_by, Values(reading).given("profile")) == (run_by, profile)
    result = check(words)
    assert not errors(result)
    assert (result.figures is None) is (profile is not None)


def test_in_another_trainer_rules_are_warnings(check: Check) -> None:
    result = check(f"train_vlm.py {LLAMA} --tensor-model-parallel-size 3", model="llama3-8b")
    assert not errors(result)
    assert any("train_vlm.py is not" in one.message for one in result.findings)


TRAINER = """\
model_name_or_path: meta-llama/Meta-Llama-3-8B
per_device_train_batch_size: 1
bf16: true
learning_rate: 1e-4
warmup_ratio: 0.1
{more}
"""


def test_arguments_in_yaml_name_their_model(check: Check) -> None:
    result = check(TRAINER.format(more="fsdp: true"), name="sft.yaml")
    assert result.model == "llama3-8b"
    assert result.figures is not None
    assert not errors(result)
    other = check(TRAINER.format(more="fsdp: true"), name="sft.yaml", model="llama3-70b")
    assert errors(other) == [("job.model", "model_name_or_path")]


def test_adapters_that_no_file_describes_are_not_priced(check: Check) -> None:
    result = check(TRAINER.format(more="use_peft: true"), name="sft.yaml")
    assert result.figures is None
    assert "job.unpriced" in [one.rule for one in result.findings]


def test_replicas_that_cannot_fit_are_an_error(check: Check) -> None:
    text = "distributed_type: MULTI_GPU\nnum_processes: 8\nmixed_precision: bf16\n"
    assert errors(check(text, name="a.yaml", model="llama3-70b")) == [
        ("memory.fits", "distributed_type")
    ]
    assert not errors(check(text, name="a.yaml", model="llama3.2-1b"))


@pytest.mark.parametrize("stage", [2, 3])
def test_common_deepspeed_files_are_no_error_for_what_is_assumed(check: Check, stage: int) -> None:
    text = f"""{{
      "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
      "train_batch_size": "auto", "bf16": {{"enabled": "auto"}},
      "zero_optimization": {{"stage": {stage}}}
    }}"""
    assert not errors(check(text, name="ds.json", model="llama3-8b"))


def test_without_a_model_contradictions_are_found_and_memory_is_not_looked_at(check: Check) -> None:
    text = '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 3, "zero_optimization": {}}'
    broken = check(text, name="ds.json", cluster=None)  # type: ignore[arg-type]
    assert errors(broken)
    assert "job.unknown" in [one.rule for one in broken.findings]
    sound = text.replace("3,", "2,")
    assert not errors(check(sound, name="ds.json", cluster=None))  # type: ignore[arg-type]


@pytest.mark.parametrize("named", PROGRAMS)
def test_other_programs_are_named(check: Check, named: str) -> None:
    text = PROGRAMS[named]
    if text[-1] not in "}\n":
        result = check(text, name="a.sh")
    else:
        result = check(text.replace(", ", ",\n").replace("{", "{\n"), name="a.yml")
    assert named in result.findings[0].message
    assert not result.is_recognised


@pytest.mark.parametrize("like", sorted({each["like"] for each in programs() if "like" in each}))
def test_programs_are_priced_by_a_profile_that_exists(like: str) -> None:
    _, framework, _, profile = [*like.split(), "--profile", "current"][:4]
    stack = stack_named(framework)
    assert stack
    if framework == stack.framework:
        assert load_traits(framework, profile).name == framework


@pytest.mark.parametrize(
    ("pattern", "layers"), [("M-M*|-M-", (4, 3)), ("M*-/*-", (3,)), ("MG|-M", None), ("", None)]
)
def test_hybrid_models_are_their_pattern(pattern: str, layers: tuple[int, ...] | None) -> None:
    words = [*LLAMA.split()[2:], f"--hybrid-layer-pattern '{pattern}'"]
    words += ["--pipeline-model-parallel-size 2"] * ("|" in pattern)
    reading = read(SourceText(path="a.args", text=" ".join(words)))
    if layers is None:
        assert reading.own_model is None
        return
    spec = reading.own_model.spec
    assert (spec.num_layers, spec.num_mtp_layers) == (sum(layers), pattern.count("/"))
    assert (spec.mixer.num_heads, spec.mixer.head_dim, spec.mixer.num_key_heads) == (128, 64, 8)
    assert reading.decisions["layers_per_stage"].value == layers
