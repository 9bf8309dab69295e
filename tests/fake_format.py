"""Formats for tests: one of a key and a value per line, and one that writes hostile words."""

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from planner.cost.context import Context
from planner.errors import ExpressError, InputError
from planner.formats.format import (
    CheckContext,
    Emitted,
    ExplainedKey,
    Finding,
    Format,
    FormatRule,
    Located,
    OutputFile,
    ParsedConfig,
    SourceText,
    Violation,
)
from planner.spec.strategy import Strategy

FIRST_LINE = "# demo"
DECISIONS = {
    "gpus": "num_gpus",
    "tp": "tp",
    "pp": "pp",
    "vpp": "vpp",
    "cp": "cp",
    "ep": "ep",
    "dp": "dp",
    "zero": "zero_stage",
    "micro": "micro_batch",
    "steps": "num_micro_batches",
    "batch": "global_batch",
    "length": "seq_len",
    "schedule": "schedule",
    "precision": "precision",
    "optimizer": "optimizer",
    "layers": "layers_per_stage",
    "full": "recompute_layers_per_stage",
    "offloaded": "offloaded_layers_per_stage",
    "modules": "recompute_modules",
    "sequence_parallel": "sequence_parallel",
    "num_layers": "model.num_layers",
    "hidden": "model.hidden_size",
    "vocabulary": "model.vocab_size",
}
OTHER_KEYS = ("log_every",)
SOUND = {"tp": 2, "zero": 1, "micro": 1, "batch": 128, "sequence_parallel": "true"}


def demo_text(**changes: object) -> str:
    """A sound configuration with some keys changed; None leaves a key out."""
    keys = {key: value for key, value in (SOUND | changes).items() if value is not None}
    return "\n".join(["# demo", *(f"{key} {value}" for key, value in keys.items())])


def _value(text: str) -> Any:
    if "," in text:
        return tuple(_value(part) for part in text.split(","))
    words = {"true": True, "false": False, "none": None}
    if text in words:
        return words[text]
    digits = text.removeprefix("-")
    return int(text) if digits.isdecimal() and len(digits) < 4000 else text


def read(source: SourceText) -> ParsedConfig:
    settings: dict[str, Located] = {}
    findings: list[Finding] = []

    def add(rule: str, message: str, key: str, line: int) -> None:
        findings.append(
            Finding(
                rule=f"demo.{rule}",
                severity="error",
                message=message,
                path=source.path,
                key=key,
                line=line,
            )
        )

    for line, text in enumerate(source.text.split("\n"), start=1):
        words = text.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2:
            raise InputError.single(source.path, f"line {line}", "needs a key and a value")
        key, given = words
        if key not in DECISIONS and key not in OTHER_KEYS:
            add("unknown_key", f"unknown key {key!r}", key, line)
        elif key in settings:
            add("duplicate_key", f"{key} is given twice", key, line)
        else:
            settings[key] = Located(value=_value(given), key=key, line=line)
    named = {name: settings[key] for key, name in DECISIONS.items() if key in settings}
    known = {name: value for name, value in named.items() if value.value is not None}
    return ParsedConfig(
        format="demo",
        path=source.path,
        settings=settings,
        decisions=known,
        findings=tuple(findings),
    )


def _log_positive(settings: Mapping[str, Located], _: CheckContext) -> Iterator[Violation]:
    given = settings.get("log_every")
    if given is not None and given.value == 0:
        yield Violation(key="log_every", message="must be at least 1; given 0")


def _tp_in_node(settings: Mapping[str, Located], world: CheckContext) -> Iterator[Violation]:
    if world.decisions["tp"] == 16:
        yield Violation(key="tp", message=f"must be at most 8 of {world.num_gpus}; given 16")


def _refuse(*_: object) -> NoReturn:
    raise ExpressError("the demo format writes nothing")


def _emit(context: Context, strategy: Strategy) -> Emitted:
    _refuse(context, strategy)


FORMAT = Format(
    name="demo",
    title="the demo format, a key and a value per line under '# demo'",
    framework="megatron",
    emit=_emit,
    recognise=lambda source: source.text.startswith(FIRST_LINE),
    read=read,
    rules=(
        FormatRule(
            name="log_every_is_positive",
            source="demo/log.py",
            check=_log_positive,
            severity="warning",
        ),
        FormatRule(name="tp_lies_in_a_node", source="demo/tp.py", check=_tp_in_node),
    ),
    write_into=lambda source, context, strategy: _refuse(source, context, strategy),
)


FAKE_EMITTED = Emitted(
    files=(
        OutputFile(name="config.json", text='{"price": "$$5 $(HOME) ${HOME} `id`"}\n'),
        OutputFile(name="more/extra.txt", text="END_OF_FILE\nit's"),
    ),
    command=("${SCRIPT}", "--config", "config.json", "--say", "it's $HOME", "--in=${DATA}/x y"),
    environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1", "WORDS": "two words"},
    variables={"SCRIPT": "the user's training script", "DATA": "folder of the data"},
    decided=(ExplainedKey(key="tp", value="1", why="one | two"),),
)


def _fake_emit(context: Context, strategy: Strategy) -> Emitted:
    if strategy.pp > 1:
        raise ExpressError("fake: no pipelines\nfake: no stages")
    return FAKE_EMITTED


def _fake_read(source: SourceText) -> ParsedConfig:
    return ParsedConfig(format="fake", path=source.path, settings={}, decisions={})


FAKE = Format(
    name="fake",
    title="Fake",
    framework="deepspeed",
    emit=_fake_emit,
    recognise=lambda source: source.text.startswith("fake"),
    read=_fake_read,
    rules=(),
    write_into=lambda source, context, strategy: source.text,
    versions="Fake 1.2",
)
