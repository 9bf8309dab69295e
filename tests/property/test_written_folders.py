"""A written folder passes the check that its README names, with the figures of its plan.

Plans are those that questions drawn for every format list, under the current profile and every
other that the format can say; launchers take turns. So does the folder as a whole.
"""

import json
import random
import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path

import pytest
from in_process import planner

from planner.answers.base import Plan
from planner.answers.plan import answer
from planner.answers.plan_file import plan_text
from planner.catalog.models import load_model
from planner.errors import ExpressError, InputError
from planner.formats.registry import load_format, written_names
from planner.frameworks.registry import CURRENT, FRAMEWORKS, profile_names
from planner.launchers import LAUNCHERS, load_launcher
from planner.query.query import Query
from planner.query.resolve import resolve
from planner.report.emitted import PlanText, output_files
from planner.report.files import write_folder

MODELS = "llama3-8b llama3.2-1b qwen3-8b qwen2.5-0.5b qwen3-30b-a3b mistral-7b-v0.1"
CLUSTERS = ("1xdgx-h100", "1xdgx-a100-640", "2xdgx-h100")
QUESTIONS, TOP = 2, 4
"""Questions for every format, and plans of each: all but the first are checked without advice."""
LEAST_CHECKED = 40
DRAWS = 12
"""Questions that are drawn under a profile before the format is taken to have no words for it."""
SETTING = "traits.overheads.step_overhead_s=0.02"  # Stands in no file
CASES = [
    (form, framework, profile)
    for form in written_names()
    for framework in FRAMEWORKS
    for profile in profile_names(framework)
    if load_format(form).carries(framework) and profile != CURRENT
]
LEAST_PROFILES = 30  # of CASES, that files are written for
HOSTFILE = "deepspeed hostfile"  # Has no figures
FILE = re.compile(r"`(?:\./)?([\w.-]+\.(?:args|json|overrides|py|sbatch|sh|toml|yaml))`")
VARIABLE = re.compile(r"`([A-Z][A-Z_]+)(?:=1)?`")
COMMAND = re.compile(r"## Check\n.*?\n```sh\n(.*?)\n```\n", re.DOTALL)
checked: list[str] = []
profiles: set[tuple[str, str, str]] = set()


@cache
def listed(
    format_name: str, number: int, framework: str = "", profile: str = CURRENT
) -> tuple[str, str, tuple[Plan, ...]]:
    """Model, cluster, and the plans for them; of drawn questions, one that the format can say.

    No plans where it can say none under another profile.
    """
    rng = random.Random(f"{format_name} {number}")
    made = load_format(format_name)
    for draw in count():
        model, cluster = rng.choice(MODELS.split()), rng.choice(CLUSTERS)
        if profile != CURRENT and draw == DRAWS:
            break
        try:
            query = Query.of(
                model,
                cluster,
                framework=framework or made.framework,
                profile=profile,
                settings=() if profile == CURRENT else (SETTING,),
                optimizer=rng.choice(("adam", "adam", "sgd", "adam-bf16")),
                precision=rng.choice(("bf16", "bf16", "fp16", "fp8")),
                global_batch=rng.choice((32, 64, 96)),
                seq_len=rng.choice((1024, 2048, 4096)),
                imbalance=45.0 if number % 2 and load_model(model).moe else None,
            )
            contexts = resolve(query, fmt=made).contexts
        except (InputError, ExpressError):
            continue
        plans = answer(contexts, top=TOP if profile == CURRENT else 1).plans
        if plans or profile == CURRENT:
            return model, cluster, plans
    return "", "", ()


def folders(
    format_name: str, number: int, out: Path, framework: str = "", profile: str = CURRENT
) -> Iterator[tuple[Path, Plan]]:
    """The plans of a question, each written for a launcher."""
    model, cluster, plans = listed(format_name, number, framework, profile)
    made = load_format(format_name)
    for place, plan in enumerate(plans):
        launcher = load_launcher([*LAUNCHERS][(number + place) % len(LAUNCHERS)])
        saved = plan_text(plan, model=model, cluster=cluster)
        text = PlanText(text=saved, model=model, cluster=cluster)
        files = output_files(made, launcher, plan.context, plan.strategy, text)
        write_folder(out / str(place), files, force=False)
        yield out / str(place), plan


def assert_passes(plan: Plan, *more: str) -> None:
    """That the README's command and the folder as a whole say what was planned.

    It names files and variables that are there.
    """
    readme = Path("README.md").read_text(encoding="utf-8")
    written = {path.name: path.read_text("utf-8") for path in Path().iterdir()}
    assert {*FILE.findall(readme)} <= written.keys()
    texts = "".join(text for name, text in written.items() if name != "README.md")
    assert not [name for name in VARIABLE.findall(readme) if name not in texts]
    stated = COMMAND.search(readme)
    assert stated, Path.cwd()
    for words in ([*shlex.split(stated[1])[1:], *more], ["check", ".", "--no-advice"]):
        code, text, _ = planner(*words, "--format", "json")
        files = json.loads(text)["files"]
        assert (code, [file["findings"] for file in files]) == (0, [[]] * len(files)), words
        figures = [file["figures"] for file in files if file["format"] != HOSTFILE]
        assert {each["iter_time_s"] for each in figures} == {plan.estimate.iter_time_s}, words
        assert {each["peak_bytes"] for each in figures} == {plan.estimate.memory.peak_bytes}


@pytest.mark.parametrize("number", range(QUESTIONS))
@pytest.mark.parametrize("format_name", written_names())
def test_a_written_folder_passes_its_own_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, format_name: str, number: int
) -> None:
    for folder, plan in folders(format_name, number, tmp_path):
        monkeypatch.chdir(folder)
        assert_passes(plan, *([] if folder.name == "0" else ["--no-advice"]))
        checked.append(folder.name)


@pytest.mark.parametrize(("format_name", "framework", "profile"), CASES)
def test_a_folder_of_another_profile_passes_its_own_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, format_name: str, framework: str, profile: str
) -> None:
    for folder, plan in folders(format_name, 0, tmp_path, framework, profile):
        monkeypatch.chdir(folder)
        assert_passes(plan, "--no-advice")
        profiles.add((format_name, framework, profile))


def test_enough_folders_of_enough_profiles_were_checked() -> None:
    assert len(profiles) >= LEAST_PROFILES, sorted(profiles)
    assert len(checked) >= LEAST_CHECKED, len(checked)
