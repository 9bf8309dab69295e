"""The package stays as small and as readable as it has become.

A figure may fall (lower it here then); none is raised to make room. What a new capability needs, it
takes from what it replaces.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import planner

ROOT = Path(planner.__file__).parent
TESTS = Path(__file__).resolve().parents[1]
AT_MOST = {
    "statements": 26_445,
    "lines": 61_240,
    "files": 278,
    "names per 1,000 lines": 62.5,
    "tokens per line of code": 8.58,
    "commands": 14,
    "modules of check": 128,
    "lines of tests": 40_697,
}
AT_LEAST = {"comments per 1,000 lines": 20.0}
NAMED = (ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
NO_WHY = re.compile(r"#\s*(noqa|type:|pragma)")
CHECK = """
import sys
from planner.cli.app import main
sys.argv = ["planner", "check", sys.argv[1]]
try:
    main()
except SystemExit:
    pass
print("modules", sum(name.split(".")[0] == "planner" for name in sys.modules))
"""


def measured() -> dict[str, float]:
    """Count statements, names at the top of modules, tokens, and comments that say why."""
    counts = dict.fromkeys(("statements", "lines", "names", "tokens", "code", "comments"), 0)
    files = sorted(ROOT.rglob("*.py"))
    for path in files:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        counts["lines"] += text.count("\n")
        counts["names"] += sum(isinstance(node, NAMED) for node in tree.body)
        counts["statements"] += sum(map(is_statement, ast.walk(tree)))
        rows = set()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in {tokenize.NAME, tokenize.NUMBER, tokenize.OP}:
                counts["tokens"] += 1
                rows.add(token.start[0])
            counts["comments"] += token.type == tokenize.COMMENT and not NO_WHY.match(token.string)
        counts["code"] += len(rows)
    thousands = counts["lines"] / 1000
    return {
        "statements": counts["statements"],
        "lines": counts["lines"],
        "files": len(files),
        "names per 1,000 lines": counts["names"] / thousands,
        "tokens per line of code": counts["tokens"] / counts["code"],
        "comments per 1,000 lines": counts["comments"] / thousands,
        "lines of tests": sum(path.read_text("utf-8").count("\n") for path in TESTS.rglob("*.py")),
    }


def is_statement(node: ast.AST) -> bool:
    """Neither an import nor a string that stands alone."""
    if not isinstance(node, ast.stmt) or isinstance(node, (ast.Import, ast.ImportFrom)):
        return False
    alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return not (alone and isinstance(node.value.value, str))


def test_no_figure_of_the_package_grows() -> None:
    figures = measured()
    assert {name: it for name, it in figures.items() if it > AT_MOST.get(name, it)} == {}
    assert {name: it for name, it in figures.items() if it < AT_LEAST.get(name, it)} == {}


def test_no_file_holds_the_marks_of_a_merge() -> None:
    files = (path for path in ROOT.rglob("*.*") if path.suffix in {".csv", ".json", ".py", ".yaml"})
    assert not [path for path in files if re.search(r"^[<>]{7} ", path.read_text("utf-8"), re.M)]


def test_the_number_of_commands_does_not_grow() -> None:
    shown = run("-m", "planner.cli.app", "--help")
    commands = set(re.findall(r"^[ │]{1,4}([a-z]+)  +\S", shown, re.MULTILINE))
    assert "plan" in commands
    assert len(commands) <= AT_MOST["commands"]


def test_checking_a_file_imports_no_more_than_it_did(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text('{"train_batch_size": 8}')
    modules = run("-c", CHECK, str(path)).rsplit("modules ", 1)[1]
    assert int(modules) <= AT_MOST["modules of check"]


def run(*arguments: str) -> str:
    """Print of a Python process of its own."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
