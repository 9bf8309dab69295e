"""What must hold of any file whatever: read from first to last, nothing but findings comes out."""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from xml.etree import ElementTree

from command_lines import run_line

from planner.answers.plan_file import load_plan
from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.catalog.observe import read_source as read_observation
from planner.check.check import check_file
from planner.check.plan import PLAN
from planner.check.result import exit_code
from planner.check.settings import settings_for
from planner.cost.context import Context
from planner.errors import ExpressError, InputError
from planner.formats import registry as formats
from planner.formats.format import CheckContext, read_source
from planner.query.from_file import AUTO, Request
from planner.report.document import serialise
from planner.report.findings import (
    check_document,
    render_github,
    render_junit,
    render_sarif,
    render_text,
)
from planner.spec.strategy import Strategy
from tools.validation.compare import compare_all
from tools.validation.records import read_runs
from tools.validation.summary import to_json

TESTS = Path(__file__).parent
EXAMPLES = TESTS / "examples"
PLANS = EXAMPLES / "positive" / "plans"
LINE_ENDS = re.compile("\r\n|[\n\r\x85\u2028\u2029]")  # as YAML has them
MODEL, CLUSTER = "llama3-8b", "2xdgx-h100"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Files that are read in one way."""

    name: str
    use: Callable[[Path], None]  # Raises nothing but InputError and ExpressError
    seeds: tuple[Path, ...]  # Sound and broken files to start from


def check(path: Path, framework: str = AUTO) -> None:
    """Check a file and write every report; each must be what it claims to be."""
    is_plan = framework == PLAN
    request = Request(
        model=None if is_plan else MODEL,
        cluster=None if is_plan else CLUSTER,
        framework=framework,
        with_advice=False,
    )
    result = check_file(str(path), request)
    assert exit_code([result]) in (0, 1, 2)
    assert all(finding.message for finding in result.findings)
    num_lines = len(LINE_ENDS.findall(path.read_text(encoding="utf-8", errors="replace"))) + 1
    assert all(0 <= finding.line <= num_lines for finding in result.findings)
    render_text([result]).encode()
    assert len(json.loads(serialise("check", check_document([result])))["files"]) == 1
    runs = json.loads(render_sarif([result]))["runs"]
    assert len(runs[0]["results"]) == len(result.findings)
    assert len(render_github([result]).splitlines()) == len(result.findings)
    suites = ElementTree.fromstring(render_junit([result]).encode())
    assert len(suites.findall("testsuite/testcase")) == max(1, len(result.findings))


def check_format(path: Path, name: str) -> None:
    """Check a file as whatever it is, and as what it was made from; write a plan into it."""
    check(path)
    check(path, name)
    source = read_source(path)
    context, strategy = _plan()
    formats.load_format(name).write_into(source, context, strategy)


def read_format(path: Path, name: str) -> None:
    """Recognise and read a file, and ask the rules; nothing is priced."""
    source = read_source(path)
    world = CheckContext(num_gpus=8, decisions={"model.num_heads": 32, "seq_len": 64})
    for kind in map(formats.load_format, formats.format_names()):
        if kind.name == name or kind.recognise(source):
            settings = kind.read(source).settings
            for rule in kind.rules:
                assert all(broken.message for broken in rule.check(settings, world))


def validate(path: Path) -> None:
    """Estimate the runs of a file, and write what comes of it."""
    runs = read_runs(path)
    json.dumps(to_json(compare_all(runs.records), runs.unread), allow_nan=False)


@cache
def _plan() -> tuple[Context, Strategy]:
    context, strategy, _ = load_plan(PLANS / "llama3-8b.yaml")
    return context, strategy


def _settings(path: Path) -> None:
    """``planner.toml`` is found by its name, so the file must have it."""
    settings_for(path)


def _under(*folders: Path) -> tuple[Path, ...]:
    suffixes = (".py", ".md")
    found = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return tuple(sorted(path for path in found if path.suffix not in suffixes))


def _format_kind(name: str) -> Kind:
    scripts = EXAMPLES / "scripts" / name
    folders = (EXAMPLES / "formats" / name, TESTS / "golden" / "emit" / name, scripts)
    return Kind(name=name, use=partial(check_format, name=name), seeds=_under(*folders))


@cache
def kinds() -> Mapping[str, Kind]:
    """Every kind of file that commands read, by name."""
    plans = _under(PLANS, EXAMPLES / "negative" / "plans")
    models = _under(EXAMPLES / "positive" / "models", EXAMPLES / "negative" / "models")
    clusters = _under(EXAMPLES / "positive" / "clusters", EXAMPLES / "negative" / "clusters")
    found = (
        *map(_format_kind, formats.format_names()),
        Kind(name=PLAN, use=partial(check, framework=PLAN), seeds=plans),
        Kind(
            name="settings", use=_settings, seeds=(EXAMPLES / "fuzz" / "settings" / "planner.toml",)
        ),
        Kind(name="config", use=load_model, seeds=_of(models, ".json")),
        Kind(name="model", use=load_model, seeds=_of(models, ".yaml")),
        Kind(name="cluster", use=load_cluster, seeds=_of(clusters, ".yaml")),
        Kind(name="runs", use=validate, seeds=_under(EXAMPLES / "runs")),
        Kind(name="command", use=run_line, seeds=_under(EXAMPLES / "commands")),
        Kind(name="hardware", use=read_observation, seeds=_under(EXAMPLES / "hardware")),
    )
    return {kind.name: kind for kind in found}


def _of(paths: tuple[Path, ...], suffix: str) -> tuple[Path, ...]:
    return tuple(path for path in paths if path.suffix == suffix)


def name_for(kind: str) -> str:
    """A name that files of a kind may have; some are known by it."""
    names = {"settings": "planner.toml", "config": "config.json"}
    return names.get(kind, "file.yaml")


def use(kind: Kind, path: Path) -> None:
    """Read a file as its kind; raises only what no user must ever see."""
    with suppress(InputError, ExpressError):
        kind.use(path)
