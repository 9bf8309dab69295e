"""The format ``deepspeed``: a JSON file for deepspeed.initialize, and its launcher's hostfile.

What the hostfile's reader (deepspeed/launcher/runner.py fetch_hostfile) refuses is an error here;
what it takes although it means nothing is one too (no slots) or a warning (words behind them).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from planner.cost.context import Context
from planner.documents.edit import JsonEditor, json_text, written
from planner.documents.file import REMOVED
from planner.documents.schema import Path, Schema, entry_of, wrongs
from planner.documents.tree import keys_at_top, parsed_object
from planner.errors import ExpressError, alike, did_you_mean
from planner.formats.adapters import LIGER_LINES
from planner.formats.decision import changes, decided_in, explained, lines_of, reasons, refuse
from planner.formats.deepspeed import keys
from planner.formats.deepspeed.decisions import TABLE, problems
from planner.formats.deepspeed.keys import (
    AUTO,
    ENABLED,
    LENGTH,
    MICRO,
    MOMENTUM,
    NAMED,
    OLD_SWITCHES,
    SCRIPT,
    SP,
    STEPS,
    TORCH_ADAM,
    TOTAL,
    TYPE,
    UNTESTED,
    ZERO,
    is_for_trainer,
    listed_in,
    schema,
)
from planner.formats.deepspeed.rules import rule
from planner.formats.format import (
    Emitted,
    ExplainedKey,
    Finding,
    Format,
    Hosts,
    Located,
    OutputFile,
    ParsedConfig,
    Severity,
    SourceText,
    UserKey,
    first_line,
    listed,
)
from planner.formats.settings import (
    Settings,
    as_whole,
    finding_at,
    given,
    path_of,
    repeated_keys,
    which,
    word,
)
from planner.limits import brief
from planner.spec.strategy import Strategy
from planner.units import plural

HOSTFILE = "hostfile"
_REPLACED = NAMED["replaced"]


def recognise(source: SourceText) -> bool:
    """Return True if the text is a JSON object with a key that only DeepSpeed's files have."""
    is_json = source.text.lstrip()[:1] in ("{", "/", "#")
    # No other file has these at its top.
    own = {TOTAL, MICRO, ZERO, UNTESTED}
    return is_json and bool(own & keys_at_top(source.path, source.text))


def read(source: SourceText, *, fills_auto: bool = False) -> ParsedConfig:
    """Read a file; ``fills_auto``: Trainer or Accelerate will fill in what is "auto".

    Raises InputError where the text is no JSON object.
    """
    tree = parsed_object(source.path, source.text)
    places: dict[Path, Located] = {}
    settings: dict[str, Located] = {}
    for path, each in tree.members.items():
        key = ".".join(path)
        places[path] = Located(value=each.value, key=key, line=each.line)
        # DeepSpeed reads ``bfloat16`` where there is no ``bf16``.
        if path[0] == "bfloat16" and ("bf16",) not in tree.members:
            key = ".".join(("bf16", *path[1:]))
        settings[key] = places[path]
    says, name = "stands twice, first on line {first}; DeepSpeed refuses that", "duplicate_key"
    findings = [*repeated_keys(f"deepspeed.{name}", source.path, tree.duplicates, says)]
    findings += _wrong(source.path, tree.value, places)
    if not fills_auto:
        findings += _left_open(source.path, places)
    return ParsedConfig(
        format="deepspeed",
        path=source.path,
        settings=settings,
        decisions=decided_in(TABLE, settings),
        # Of a script that splits sequences, which plans leave to it.
        traits=(("support.features", ("tp", "cp")),) * ((as_whole(given(settings, SP)) or 1) > 1),
        findings=tuple(sorted(findings, key=lambda each: each.line)),
    )


def _wrong(where: str, value: object, places: Mapping[Path, Located]) -> Iterator[Finding]:
    foreign: list[str] = []
    for wrong in wrongs(schema(), value):
        path, place = wrong.path, places[wrong.path]
        # A key at the top that says it is a comment: DeepSpeed ignores what it does not know there.
        start = path[0].lstrip("_/# ").lower()[:7]
        is_comment = len(path) == 1 and start in ("", "comment")
        if wrong.allowed and (wrong.value != AUTO or "enum" in wrong.schema):
            given = brief(wrong.value)
            message = f"a value that DeepSpeed cannot use; given {given}, {wrong.allowed}"
            yield finding_at("deepspeed.bad_value", where, place, message)
        elif wrong.allowed or is_comment or ".".join(path) in listed_in("removed"):
            # Removed keys have a rule of their own.
            continue
        elif _is_meant(path):
            message = _why_unknown(path, wrong.schema["properties"])
            yield finding_at("deepspeed.unknown_key", where, place, message)
        else:
            foreign.append(path[0])
    if foreign:
        yield finding_at(
            "deepspeed.unknown_key",
            where,
            places[foreign[0],],
            f"{listed(foreign)}: ignored by DeepSpeed; sound where the script reads it",
            "warning",
        )


def _left_open(where: str, places: Mapping[Path, Located]) -> Iterator[Finding]:
    """One finding for all values that Trainer and Accelerate fill in: known, and no choice."""
    found = [
        place
        for path, place in places.items()
        if is_for_trainer(place.key, place.value)
        and (entry := entry_of(schema(), path)) is not None
        and "enum" not in entry
    ]
    if found:
        place = min(found, key=lambda place: place.line)
        others = f", here and at {plural(len(found) - 1, 'other key')}," if found[1:] else ""
        yield finding_at(
            "deepspeed.auto_value",
            where,
            place,
            f'"auto"{others} is filled in by Trainer or Accelerate only',
            "warning",
        )


def _is_meant(path: Path) -> bool:
    """Whether an unknown key was meant for DeepSpeed, and is no script's own."""
    if len(path) > 1 or path[0] in _REPLACED:
        return True
    # How alike a key at the top is to the one that was meant.
    is_near = alike(path[0].lower(), schema()["properties"], 0.83)
    # Sections whose keys, one level too high, are no script's own.
    sections = ("zero_optimization", "fp16", "bf16", "activation_checkpointing")
    return bool(is_near) or _other_place(path[-1]) in sections


def _why_unknown(path: Path, known: Mapping[str, Any]) -> str:
    *above, name = path
    replaced, place = _REPLACED.get(".".join(path)), _other_place(name)
    hint = f"it is a key of {place}" if place else did_you_mean(name, known)
    hint = f"{replaced} in its place" if replaced else hint
    where = f"in {'.'.join(above)}" if above else "at the top"
    return f"DeepSpeed knows no key {name!r} {where}; {hint}".removesuffix("; ")


def _other_place(name: str) -> str:
    """The one section that has a key of this name; empty where none has, or several have."""
    places = [
        key
        for key, entry in _sections(schema())
        if key not in ("", SCRIPT) and name in entry["properties"]
    ]
    return places[0] if len(places) == 1 else ""


def _sections(entry: Schema, above: str = "") -> Iterator[tuple[str, Schema]]:
    if "properties" in entry:
        yield above, entry
        for name, inner in entry["properties"].items():
            yield from _sections(inner, f"{above}.{name}".lstrip("."))


def read_hostfile(source: SourceText) -> Hosts:
    """Hosts in the order of the file, each with its slots, and what is wrong."""
    slots: dict[str, int] = {}
    findings: list[Finding] = []
    for number, entry in enumerate(map(str.strip, source.text.split("\n")), start=1):
        if not entry or entry.startswith("#"):
            continue
        found = re.match(r"(\S+)\s+slots=([0-9]{1,9})(?![0-9])\s*(.*)", entry)
        host, count, rest = found.groups() if found else ("", "1", "")
        is_rest = bool(rest) and not rest.startswith("#")
        wrong = {
            "entry": "" if found else f"no entry; given {entry[:60]!r}, needed is `host slots=8`",
            "duplicate": "allowed is one entry for every host; given another" * (host in slots),
            "slots": "no slots; given 0, needed are 1 or more" * (int(count) == 0),
            "rest": f"ignored by the launcher; given {rest[:60]!r} behind the slots" * is_rest,
        }
        place = Located(key=host, line=number)
        for kind, message in wrong.items():
            severity: Severity = "warning" if kind == "rest" else "error"
            if message:
                name = f"deepspeed.hostfile_{kind}"
                findings.append(finding_at(name, source.path, place, message, severity))
        if found:
            slots.setdefault(host, int(count))
    if not slots and not findings:
        message = "no host; given none, needed is a line such as `worker-0 slots=8`"
        place = Located(key="")
        findings.append(finding_at("deepspeed.hostfile_empty", source.path, place, message))
    return slots, tuple(findings)


def hosts(source: SourceText) -> Hosts | None:
    """Read a hostfile: the first line that is no comment is a host with slots."""
    return read_hostfile(source) if re.match(r"\S+\s+slots=", first_line(source.text)) else None


FILE = "ds_config.json"


def emit(context: Context, strategy: Strategy) -> Emitted:
    """Return the file; ExpressError with every reason why the strategy cannot be expressed."""
    refuse("deepspeed", reasons(TABLE, context, strategy))
    lines = lines_of(TABLE, context, strategy)
    text = written({line.key: line.value for line in lines})
    files = [OutputFile(name=FILE, text=text)]
    decided = [*explained(lines, json_text)]
    # The hostfile of several whole nodes; one node needs none.
    slots = context.cluster.node.num_accelerators
    count, rest = divmod(strategy.num_gpus, slots)
    if count > 1 and not rest:
        text = "".join(f"worker-{node} slots={slots}\n" for node in range(count))
        files.append(OutputFile(name=HOSTFILE, text=text))
        why = (
            "only for DeepSpeed's own launcher, in place of launch.sh: put your hosts' names here, "
            "then `deepspeed --hostfile hostfile` starts your script from one of them"
        )
        decided.append(ExplainedKey(key=HOSTFILE, value=f"{count} hosts", why=why))
    # What the user's script must do beside calling DeepSpeed.
    tp, pp = strategy.tp, strategy.pp
    tasks = {
        f"build a PipelineModule of {pp} stages with layers_per_stage": pp > 1,
        f"split its layers over {tp} ranks": pp > 1 and tp > 1,
        "use Ulysses attention": strategy.cp > 1,
        "checkpoint as many layers of every stage as the file says": strategy.recompute != "none",
    }
    calls = "deepspeed.initialize"
    if own := [*which(tasks)]:
        calls += f"; under {SCRIPT} it finds what it must do: {', '.join(own)}"
    rate = (
        "peak learning rate, under optimizer.params; or take the optimizer out, where your script "
        "brings its own"
    )
    return Emitted(
        files=tuple(files),
        command=("${TRAIN_SCRIPT}", "--deepspeed", "--deepspeed_config", FILE),
        variables={"TRAIN_SCRIPT": f"your training script, which calls {calls}"},
        open_keys=(UserKey(file=FILE, key="lr", what=rate, section="optimizer"),),
        decided=(*decided, *explained(LIGER_LINES(context, strategy))),
    )


def write_into(source: SourceText, context: Context, strategy: Strategy) -> str:
    """Return the file with the strategy's decisions; other keys and comments stay.

    What decides the same already is not touched, nor what is left to Trainer; an optimizer is only
    changed, never added: where there is none, the script brings its own. Raises ExpressError.
    """
    refuse("deepspeed", reasons(TABLE, context, strategy))
    reading = read(source)
    settings = reading.settings
    left = _left_to_trainer(settings, strategy)
    # The script may bring the optimizer, or one that no plan has; a length it may not need.
    kind = word(settings, TYPE)
    is_known = kind == AUTO or keys.is_optimizer_type(kind)
    if "optimizer" not in settings or (is_known and "optimizer" not in reading.decisions):
        left |= {TYPE, TORCH_ADAM, MOMENTUM, UNTESTED}
    if LENGTH not in settings:
        left.add(LENGTH)
    # DeepSpeed refuses old switches beside the section that replaced them.
    twice = {
        f"{ZERO}.{switch}": REMOVED
        for section, switch in OLD_SWITCHES.items()
        if {f"{ZERO}.{section}", f"{ZERO}.{switch}"} <= settings.keys()
    }
    stated = {key: value for key, value in settings.items() if key not in twice}
    found = changes(TABLE, stated, lines_of(TABLE, context, strategy)) | twice
    found = {key: value for key, value in found.items() if key not in left}
    # A file with "auto" is run by Trainer or Accelerate: no script of the user's reads it.
    has_auto = any(is_for_trainer(key, each.value) for key, each in settings.items())
    ignored = [key for key in found if key.startswith((f"{SCRIPT}.", "pipeline."))]
    if ignored and has_auto:
        runs = '"auto" is for Trainer and Accelerate, which do not read'
        raise ExpressError(f"{reading.path}: {runs} {', '.join(ignored)}")
    paths = {path_of(settings, key): value for key, value in found.items()}
    return JsonEditor(source.path, source.text).changed(paths)


def _left_to_trainer(settings: Settings, strategy: Strategy) -> set[str]:
    """Keys that are "auto", or missing beside such, where the strategy takes no other value.

    The batch is the job's, and steps follow from it; a micro-batch without steps is read as 1.
    """
    found: set[str] = set()
    sizes = (TOTAL, MICRO, STEPS)
    batch = {key: given(settings, key) for key in sizes}
    if AUTO in batch.values():
        found = {key for key in sizes if batch[key] in (AUTO, None)}
        if STEPS in found and strategy.micro_batch != 1:
            found.discard(MICRO)
        if batch[STEPS] is None and MICRO not in found:
            found.discard(STEPS)
    precision = {key: given(settings, key) for key in ENABLED}
    if AUTO in precision.values():
        is_open = True not in precision.values()
        found |= {key for key in ENABLED if precision[key] == AUTO or is_open}
    return found


FORMAT = Format(
    name="deepspeed",
    title="DeepSpeed JSON",
    framework="deepspeed",
    emit=emit,
    recognise=recognise,
    read=read,
    rules=tuple(rule),
    write_into=write_into,
    hosts=hosts,
    problems=problems,
    script_recomputes=True,
)
