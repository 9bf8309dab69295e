from pathlib import Path
from typing import Any

import pytest

from planner.catalog.figures import Figure, Source, Strict, implausible, validate
from planner.documents.tree import load_yaml
from planner.errors import InputError, nearest


class Part(Strict):
    hbm_gib: Figure
    tdp_w: Figure | None = None


class Board(Strict):
    part: Part
    sources: dict[str, Source]


def figure(value: object, source: str = "sheet") -> dict[str, object]:
    return {"value": value, "basis": "read", "source": source}


def problems_of(part: dict[str, object]) -> dict[str, str]:
    data = {"part": part, "sources": {"sheet": {"url": "https://example.org"}}}
    with pytest.raises(InputError) as caught:
        validate(Board, data, "board.yaml")
    assert all(problem.where == "board.yaml" for problem in caught.value.problems)
    return {problem.key: problem.message for problem in caught.value.problems}


def test_a_good_file_becomes_its_model() -> None:
    data = {"part": {"hbm_gib": figure(80)}, "sources": {"sheet": {"note": "n"}}}
    assert validate(Board, data, "board.yaml").part.hbm_gib.value == 80


GUESSED = {**figure(80), "basis": "guessed"}


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"hbm_gib": figure(80), "tdp": 1}, {"tdp": "unknown key; given 1, did you mean tdp_w?"}),
        ({"hbm_gib": {**figure(80), "sourc": 1}}, {"hbm_gib.sourc": "did you mean source?"}),
        ({"tdp_w": figure(400)}, {"hbm_gib": "is missing; given keys are tdp_w"}),
        ({"hbm_gib": figure("80GB")}, {"hbm_gib.value": "valid number; given '80GB'"}),
        ({"hbm_gib": GUESSED}, {"hbm_gib.basis": "given 'guessed'.*'recalled'"}),
        (
            {"hbm_gib": figure(80, "shet")},
            {"hbm_gib.source": "'shet' is not among the file's sources; did you mean sheet?"},
        ),
        (
            {"hbm_gib": figure(80e9)},
            {"hbm_gib.value": "magnitude, wrong unit?; given 8e+10, allowed 0.1 to 2000"},
        ),
        (
            {"hbm_gib": figure(80e9, "nowhere"), "tdp_w": figure("hot"), "colour": 1},
            {"hbm_gib.value": "", "hbm_gib.source": "", "tdp_w.value": "", "colour": ""},
        ),
    ],
)
def test_all_that_is_wrong_is_said_at_its_key(part: dict[str, Any], said: dict[str, str]) -> None:
    problems = problems_of(part)
    assert problems.keys() == {f"part.{key}" for key in said}
    for key, text in said.items():
        assert all(words in problems[f"part.{key}"] for words in text.split(".*"))


@pytest.mark.parametrize("value", [0, -5, float("nan"), float("inf"), True, None])
def test_values_that_are_no_positive_numbers_are_refused(value: object) -> None:
    assert "part.hbm_gib.value" in problems_of({"hbm_gib": figure(value)})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("bf16_dense_tflops", 0.3),
        ("bf16_dense_tflops", 312e12),
        ("hbm_gb_per_s", 2.0),
        ("latency_us", 2e-6 / 1e3),
        ("efficiency_fraction", 80),
        ("nic_gbit_per_s", 400e9),
    ],
)
def test_figures_in_a_wrong_unit_are_implausible(key: str, value: float) -> None:
    assert implausible(key, value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "must be a mapping") for text in ("", "- 1\n", "word\n")),
        ("on: 1\n", "keys must be words"),  # YAML reads a switch
    ],
)
def test_a_file_that_is_no_mapping_of_words_is_an_error(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=said):
        load_yaml(path)


def test_nearest_puts_like_spellings_before_names_that_contain_the_word() -> None:
    assert nearest("dgxh100", ["dgx-h100", "h100", "a100"])[0] == "dgx-h100"
    assert nearest("mi250x", ["mi250x-gcd", "t4"]) == ["mi250x-gcd"]
    assert nearest("zzz", ["h100"]) == []
