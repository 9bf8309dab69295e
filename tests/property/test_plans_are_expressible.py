"""What is planned can be said: every plan is written, read back as it was, and checks clean.

Questions are drawn over models, clusters, frameworks, formats and options, and asked as the command
line asks them.
"""

import random
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from depth import of_all

from planner.answers.base import Answer, Deadline, Plan
from planner.answers.plan import answer
from planner.check.check import check_file
from planner.check.start import not_stated
from planner.cost.context import Context
from planner.errors import ExpressError, InputError
from planner.formats.format import Format, SourceText
from planner.formats.registry import format_for, load_format
from planner.query.from_file import Job, Request
from planner.query.layout import complete
from planner.query.query import Query
from planner.query.resolve import resolve
from planner.query.values import Values, model_mismatches
from planner.search.space.narrow import Narrowing

CHUNKS, EACH = of_all(13), 40  # Questions: CHUNKS x EACH
TIME_LIMIT_S = 4.0
TOP = 2
MODELS = """
llama3-8b llama3.2-1b qwen2.5-7b gemma-2b gpt2-xl opt-1.3b bloom-3b falcon-7b mixtral-8x7b
qwen3-30b-a3b gpt-oss-20b pythia-12b mpt-7b gpt3-2.7b deepseek-v2-lite mistral-7b-v0.1
llama3-70b phi-2 olmo-2-7b gemma2-9b llama3.2-3b qwen3-8b nemotron-4-15b gpt3-13b nemotron-3-nano-4b
nemotron-nano-9b-v2 qwen3.5-2b qwen3.5-9b
"""
CLUSTERS = """
1xdgx-h100 1xdgx-h100 1xdgx-a100-640 1xpcie-8x-rtx4090 1xdgx-a100-320 1xhgx-mi300x 2xdgx-h100
2xdgx-a100-640 1xgb200-tray 4xgb200-tray
"""
OWN = ("megatron", "deepspeed", "torchtitan", "accelerate", "bridge", "trainer")
MIXED = (("accelerate", "deepspeed"), ("trainer", "deepspeed"), (None, "megatron"), (None, "any"))
FORMATS = (*((name, None) for name in OWN), *MIXED)
"""What ``--emit`` and ``--framework`` say."""
PROFILES = {
    "megatron": ("bridge", "no-overlap"),
    "deepspeed": ("zero++", "megatron"),
    "torchtitan": ("eager",),
}
OPTIMIZERS = ("adam-bf16", "sgd-momentum", "lion", "muon", "adam-8bit")
OPTIONS: tuple[dict[str, tuple[str, ...]], ...] = (
    {"forbid": ("offload",)},
    {"forbid": ("recompute", "tensor-parallel")},
    {"fix": ("pp=2",)},
    {"fix": ("recompute=full",)},
    {"fix": ("offload=optimizer:host",)},
    {"fix": ("cp=2",), "allow": ("short-context-parallel",)},
    {"where": ("tp * pp <= 4 and micro_batch <= 2",)},
    {"allow": ("large-micro-batch",)},
)


@dataclass(frozen=True, kw_only=True)
class Asked:
    model: str
    cluster: str
    emit: str | None
    sizes: dict[str, int]
    software: dict[str, str]
    options: dict[str, tuple[str, ...]]

    @property
    def is_plain(self) -> bool:
        """Nothing is said that a file cannot hold: profiles and narrowed spaces are no file's."""
        return self.software["profile"] == "current" and not self.options


def drawn(number: int) -> Asked:
    rng = random.Random(f"questions {number}")
    emit, framework = FORMATS[number % len(FORMATS)]
    framework = framework or load_format(str(emit)).framework
    profiles = PROFILES.get(framework, ())
    model, cluster = rng.choice(MODELS.split()), rng.choice(CLUSTERS.split())
    software = {
        "framework": framework,
        "profile": rng.choice(("current",) * 5 + profiles),
        "optimizer": rng.choice(("adam",) * 8 + OPTIMIZERS),
        "precision": rng.choice(("bf16",) * 6 + ("fp16", "fp8")),
    }
    lengths = (512, 2048, 4096, 16384)
    sizes = {"global_batch": rng.choice((16, 64, 96, 128)), "seq_len": rng.choice(lengths)}
    options = rng.choice(({},) * 16 + OPTIONS)
    return Asked(
        model=model, cluster=cluster, emit=emit, sizes=sizes, software=software, options=options
    )


def asked_contexts(asked: Asked) -> tuple[tuple[Context, ...], Narrowing]:
    """What ``planner plan`` searches; raises InputError and ExpressError as it does."""
    made = load_format(asked.emit) if asked.emit else None
    words = {**asked.software, **asked.sizes, **asked.options}
    resolved = resolve(Query.of(asked.model, asked.cluster, **words), fmt=made)
    return resolved.contexts, resolved.narrowing


def written(kind: Format, plan: Plan, folder: Path) -> Path:
    emitted = kind.emit(plan.context, plan.strategy)
    folder.mkdir(parents=True)
    for file in emitted.files:
        (folder / file.name).write_text(file.text, encoding="utf-8")
    return folder / emitted.files[0].name


def wrong(asked: Asked, result: Answer, folder: Path) -> list[str]:
    """What does not hold of the plans listed, in words."""
    found: list[str] = []
    for place, plan in enumerate(result.plans):
        kind = load_format(asked.emit or plan.framework)
        try:
            path = written(kind, plan, folder / str(place))
        except ExpressError as error:
            if asked.emit or not list(kind.problems(plan.context)):
                found.append(f"plan {place + 1} is refused: {error}")
            continue
        reading = kind.read(SourceText(path=str(path), text=path.read_text(encoding="utf-8")))
        request = Request(num_gpus=plan.strategy.num_gpus, **asked.sizes)
        job = Job(model=plan.context.model, cluster=plan.context.cluster, request=request)
        back = complete(reading, job, kind.framework_of(reading)).layout
        others = model_mismatches(Values(reading), plan.context.model)
        found += [f"plan {place + 1}: {at.key} is of another model, {text}" for at, text in others]
        what = not_stated(plan.context, plan.strategy, back)
        if back is not None:
            same = plan.context.job.precision == back.context.job.precision
            same &= plan.context.traits.optimizer.name == back.context.traits.optimizer.name
            what += "" if same else " precision or optimizer"
        if what:
            found.append(f"plan {place + 1} is read back without {what}")
        if asked.is_plain:
            is_first = place == 0 and result.is_complete
            names = {"model": asked.model, "cluster": asked.cluster, "framework": kind.name}
            request = replace(request, **names, with_advice=is_first, time_limit_s=TIME_LIMIT_S)
            said = check_file(str(path), request).findings
            said = [one for one in said if is_first or one.severity != "note"]
            found += [f"plan {place + 1}: {one}" for one in said]
    return found


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_listed_plans_are_written_read_and_clean(chunk: int, tmp_path: Path) -> None:
    outcomes: Counter[str] = Counter()
    broken: list[str] = []
    for number in range(chunk * EACH, (chunk + 1) * EACH):
        asked = drawn(number)
        try:
            contexts, narrowing = asked_contexts(asked)
        except (InputError, ExpressError) as error:
            outcomes["refused by name"] += 1
            broken += unnamed(asked, error)
            continue
        result = answer(contexts, top=TOP, narrowing=narrowing, deadline=Deadline(TIME_LIMIT_S))
        outcomes["planned" if result.plans else "nothing fits"] += 1
        broken += [f"{asked}: {one}" for one in wrong(asked, result, tmp_path / str(number))]
    assert not broken, "\n".join(broken)
    assert outcomes["planned"] >= EACH // 3, outcomes


LAYER_KINDS = {
    "nvidia/Nemotron-3-Nano-30B-A3B": ("2xdgx-h100", "megatron"),
    "Qwen/Qwen3.5-397B-A17B": ("32xdgx-h200", "megatron"),
    "deepseek-ai/DeepSeek-V3.2": ("64xdgx-h100", "megatron"),
    "MiniMaxAI/MiniMax-M2.5": ("8xdgx-h200", "megatron"),
    "moonshotai/Kimi-Linear-48B-A3B-Instruct": ("4xdgx-h100", "accelerate"),
    "ibm-granite/granite-4.0-h-small": ("2xdgx-h100", "accelerate"),
}


@pytest.mark.parametrize("model", LAYER_KINDS)
def test_models_of_layer_kinds_are_written_for_software_that_starts_them(
    model: str, tmp_path: Path
) -> None:
    cluster, name = LAYER_KINDS[model]
    query = Query.of(model, cluster)
    kind = format_for(resolve(query).contexts[0])
    assert kind.name == name
    (plan,) = answer(resolve(query, fmt=kind).contexts, top=1).plans
    path = written(kind, plan, tmp_path / "run")
    num_gpus = plan.strategy.num_gpus
    request = Request(model=model, cluster=cluster, num_gpus=num_gpus, with_advice=False)
    result = check_file(str(path), request)
    assert [str(one) for one in result.findings if one.severity != "note"] == []
    assert result.figures is not None


def unnamed(asked: Asked, error: Exception) -> list[str]:
    """A refusal names the option or the part of the question that cannot be said."""
    names = [asked.model, "schedule", *asked.software.values()]
    names += [word for words in asked.options.values() for word in words]
    text = str(error)
    is_named = any(name.partition("=")[0] in text for name in names)
    return [] if is_named else [f"{asked}: refused without a name: {text}"]
