"""What commands say: every case of screens/ is a command line and texts of its answer.

A case has a ``run`` (a command line; white space in texts counts as one space) with

- ``exit``: its code, 0 if none is given
- ``first``: what it starts with
- ``out``, ``err``, ``lacks``: texts on standard output, in the messages, in neither
- ``lines``: how many messages there are, but for a last one of what to type instead
- ``columns``: widths of terminals, where no line is wider and no text is cut
- ``rows``: how many lines there are at most on such a terminal
- ``json``: values of the answer to ``--format json``, by their paths
- ``same``, ``less``: paths to others with the same, or a larger value; those that begin with
  ``beside.`` are of the answer to a second command line, ``beside``

or a ``start`` with ``refused``: the rest of wrong command lines, and what the messages say. All of
them end with code 2, nothing on standard output and a line ``where::key: message`` of each problem;
a last one may be ``try: COMMAND``.
``files`` lie in the folder that commands run in; ``plan`` has one more, plan.yaml, with these
decisions. ``before`` are commands that succeed first. Afterwards files are as they were and there
are no others, but those that ``writes`` names, with texts that they have.
"""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from in_process import Run, planner
from places import at
from plan_document import plan_document

EXAMPLES = Path(__file__).parent
FILES = sorted((EXAMPLES / "screens").glob("*.yaml"))
CASES = {
    f"{path.stem}: {claim}": case
    for path in FILES
    for claim, case in yaml.safe_load(path.read_text(encoding="utf-8")).items()
}
KEYS = {"run", "exit", "first", "out", "err", "lacks", "lines", "columns", "rows", "json"}
KEYS |= {"same", "less", "beside", "start", "refused", "files", "plan", "before", "writes"}
PROBLEM = re.compile(r"[^:]+(:\d+)?::[^:]+: .+|note: .+")


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def said(line: str) -> Run:
    return planner(*shlex.split(line.replace("{examples}", str(EXAMPLES))))


def assert_texts(case: dict[str, Any], answer: Run) -> None:
    out, err = (" ".join(text.split()) for text in (answer.out, answer.err))
    assert answer.code == case.get("exit", 0), out + err
    assert (out or err).startswith(case.get("first", "").strip())
    for place, texts in ((out, "out"), (err, "err")):
        for text in listed(case.get(texts, [])):
            assert text.strip() in place
            assert place.endswith(text) or not text.startswith("try: ")
    for text in listed(case.get("lacks", [])):
        assert text not in out + err
    lines = [line for line in answer.err.splitlines() if not line.startswith("try: ")]
    assert len(lines) == case.get("lines", len(lines))


def assert_refused(answer: Run) -> None:
    lines = answer.err.splitlines()
    if lines[-1].startswith("try: planner "):
        lines.pop()
    assert lines[0].startswith("Usage: ") or all(map(PROBLEM.match, lines)), answer.err
    assert answer.out == ""


def assert_width(answer: Run, width: int) -> None:
    lines = [line for line in answer.out.splitlines() if not line.startswith("Next: ")]
    assert max(map(len, lines)) <= width
    assert "…" not in answer.out


def assert_values(case: dict[str, Any]) -> None:
    if not case.keys() & {"json", "same", "less"}:
        return
    document = json.loads(said(f"{case['run']} --format json").out)
    if "beside" in case:
        document["beside"] = json.loads(said(f"{case['beside']} --format json").out)
    for path, value in case.get("json", {}).items():
        assert at(document, path) == value, path
    for path, other in case.get("same", {}).items():
        assert at(document, path) == at(document, other), path
    for path, other in case.get("less", {}).items():
        assert at(document, path) < at(document, other), path


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where searches are kept: a document, or another width, is of the answer shown before."""
    return tmp_path_factory.mktemp("caches")


@pytest.mark.parametrize("name", CASES)
def test_the_answer_says_so(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caches: Path
) -> None:
    case = CASES[name]
    assert set(case) <= KEYS
    monkeypatch.delenv("PLANNER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(caches))
    monkeypatch.chdir(tmp_path)
    if "plan" in case:
        Path("plan.yaml").write_text(yaml.safe_dump(plan_document(**case["plan"])))
    for file, text in case.get("files", {}).items():
        Path(file).parent.mkdir(exist_ok=True)
        Path(file).write_text(text)
    given = {path: path.read_text() for path in Path().rglob("*") if path.is_file()}
    for line in case.get("before", []):
        assert said(line).code == 0, line
    if "run" in case and "columns" not in case:
        assert_texts(case, said(case["run"]))
    for width in listed(case.get("columns", [])):
        monkeypatch.setenv("COLUMNS", str(width))
        answer = said(case["run"])
        assert_texts(case, answer)
        assert_width(answer, width)
        assert len(answer.out.splitlines()) <= case.get("rows", 1000)
    for rest, messages in case.get("refused", {}).items():
        answer = said(f"{case['start']} {rest}")
        assert_texts({"exit": 2, "err": messages, **case}, answer)
        assert_refused(answer)
    assert_values(case)
    written = {str(path): path.read_text() for path in Path().rglob("*") if path.is_file()}
    for file, texts in case.get("writes", {}).items():
        text = written.pop(file)
        assert text != given.pop(Path(file), "")
        assert [each for each in listed(texts) if each not in text] == []
    assert written == {str(path): text for path, text in given.items()}
