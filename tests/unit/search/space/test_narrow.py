"""What a user says to narrow the search: values, rules, kinds, and every problem at once."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.context import Context
from planner.errors import InputError
from planner.search.space.narrow import NOT_COVERED, read_narrowing
from planner.search.space.rule import GPUS, Rule
from planner.spec.strategy import LAYER_POLICY_NAMES, OFFLOAD_CODES, PLACEMENT_NAMES, SCHEDULES

Contexts = Callable[..., Context]
OTHERS = [name for name in GPUS if name not in ("tp", "pp", "dp")]  # Degrees of GPUs beside those


def problems_of(**options: Any) -> list[tuple[str, str]]:
    with pytest.raises(InputError) as caught:
        read_narrowing(**options)
    assert {problem.where for problem in caught.value.problems} == {"command line"}
    return [(problem.key, problem.message) for problem in caught.value.problems]


def problem_of(**options: Any) -> str:
    [(_, message)] = problems_of(**options)
    return message


def where(text: str) -> Rule:
    [rule] = read_narrowing(where=[text]).rules
    return rule


def verdicts(rule: Rule, context: Context, **columns: list[int]) -> list[bool]:
    num_rows = max(map(len, columns.values()))
    columns = {degree: [1] * num_rows for degree in GPUS if degree in rule.needs} | columns
    assert set(columns) == set(rule.needs)
    legal = rule.is_legal(context, {name: np.array(column) for name, column in columns.items()})
    assert legal.dtype == bool
    return legal.tolist()


def test_fixed_values_stand_for_codes_of_their_dimension() -> None:
    narrowing = read_narrowing(
        fix=[
            "tp=16, pp=4|2",
            "SP=on",
            "zero=3",
            "schedule=zb-v|1f1b",
            "offload=optimizer+parameters:host",
            f"placement={PLACEMENT_NAMES[1]}",
            "offload_percent=50",
        ]
    )
    assert narrowing.values == {
        "tp": (16,),
        "pp": (2, 4),
        "sequence_parallel": (1,),
        "schedule": (SCHEDULES.index("1f1b"), SCHEDULES.index("zb-v")),
        "zero_stage": (3,),
        "offload": (OFFLOAD_CODES.index("optimizer+parameters:host"),),
        "offload_percent": (50,),
        "placement": (1,),
    }
    assert narrowing.rules == ()
    assert narrowing.texts[:3] == ("--fix tp=16", "--fix pp=4|2", "--fix SP=on")


@pytest.mark.parametrize("word", ["1", "true", "on", "True", "ON"])
def test_switches_take_any_usual_word(word: str) -> None:
    assert read_narrowing(fix=[f"sp={word}"]).values == {"sequence_parallel": (1,)}


def test_numbers_that_follow_from_dimensions_are_fixed_by_a_rule(context_of: Contexts) -> None:
    narrowing = read_narrowing(fix=["gpus=8|16"])
    assert narrowing.values == {}
    [rule] = narrowing.rules
    assert rule.name == "--fix gpus=8|16"
    columns = {"tp": [2, 4, 4], "cp": [1, 1, 2], "pp": [2, 2, 2], "dp": [2, 2, 2]}
    assert verdicts(rule, context_of(), **columns) == [True, True, False]


def test_rules_are_named_as_written_and_need_what_they_read() -> None:
    narrowing = read_narrowing(
        limit=["tp<=8,  gpus <= 512"], where=["pp in (2,4,8) and tp*cp <= 8"], forbid=["pipeline"]
    )
    assert [(rule.name, rule.needs) for rule in narrowing.rules] == [
        ("--limit tp<=8", ("tp",)),
        ("--limit gpus <= 512", GPUS),
        ("--where pp in (2,4,8) and tp*cp <= 8", ("tp", "cp", "pp")),
        ("--forbid pipeline", ("pp",)),
    ]
    assert narrowing.texts == tuple(rule.name for rule in narrowing.rules)
    assert all(rule.message.endswith(".") for rule in narrowing.rules)


@pytest.mark.parametrize(
    ("text", "legal"),
    [
        ("tp <= 4", [True, True, False]),
        ("TP >= 4 AND tp < 8", [False, True, False]),
        ("2 < tp <= 8", [False, True, True]),
        ("tp in (2, 8)", [True, False, True]),
        ("tp in 8", [False, False, True]),
        ("tp not in [2, 8]", [False, True, False]),
        ("not (tp == 2 or tp == 8)", [False, True, False]),
        ("tp % 4 == 0", [False, True, True]),
        ("(tp + 1) // 2 * 3 - 1 == 5", [False, True, False]),
        ("tp - 4 == -2", [True, False, False]),
        ("tp != 4", [True, False, True]),
    ],
)
def test_conditions_mean_what_they_say(context_of: Contexts, text: str, legal: list[bool]) -> None:
    assert verdicts(where(text), context_of(), tp=[2, 4, 8]) == legal


def test_words_are_bare_or_quoted(context_of: Contexts) -> None:
    codes = list(range(len(SCHEDULES)))
    wanted = [name in ("1f1b", "zb-v", "gpipe") for name in SCHEDULES]
    for text in (
        "schedule in (1f1b, zb-v, gpipe)",
        "schedule in ('1f1b', \"zb-v\", 'gpipe')",
        "schedule == 1f1b or 'zb-v' == schedule or schedule == gpipe",
    ):
        assert verdicts(where(text), context_of(), schedule=codes) == wanted
    opposite = where("schedule not in (1f1b, zb-v, gpipe)")
    assert verdicts(opposite, context_of(), schedule=codes) == [not each for each in wanted]


def test_derived_numbers_follow_from_their_columns(context_of: Contexts) -> None:
    context = context_of(global_batch=64)
    rule = where("num_micro_batches >= 8")
    assert verdicts(rule, context, dp=[4, 4], micro_batch=[2, 4]) == [True, False]
    assert verdicts(where("dp_shard == 2"), context, dp=[4, 4], dp_replicate=[2, 1]) == [
        True,
        False,
    ]


def test_what_divides_by_zero_holds_nowhere(context_of: Contexts) -> None:
    context = context_of()
    for text in ("8 % (tp - 2) == 0", "8 // (tp - 2) != 1", "not 8 // (tp - 2) == 1"):
        assert verdicts(where(text), context, tp=[2])[0] is False
    assert verdicts(where("tp == 2 or 8 % (tp - 2) == 0"), context, tp=[2, 4, 5]) == [
        True,
        True,
        False,
    ]


def test_numbers_beyond_whole_doubles_hold_nowhere(context_of: Contexts) -> None:
    rule = where(f"{'*'.join(['tp'] * 30)} > 0")
    assert verdicts(rule, context_of(), tp=[1, 2, 8]) == [True, True, False]


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ({"fix": ["recompute=full"]}, ("full",)),
        ({"fix": ["recompute=none"]}, ("none", "offloaded")),
        ({"fix": ["recompute=none|full"]}, ("none", "full", "offloaded")),
        ({"where": ["recompute in (none, selective)"]}, ("none", "selective", "offloaded")),
        ({"where": ["recompute != full and tp <= 8"]}, ("none", "selective", "offloaded")),
        ({"where": ["tp <= 8 and (pp > 1 and 'selective' == recompute)"]}, ("selective",)),
        ({"limit": ["recompute not in (none,)"]}, ("selective", "full")),
        ({"forbid": ["recompute"]}, ("none", "offloaded")),
        ({"forbid": ["offload"]}, ("none", "selective", "full")),
        ({"forbid": ["offload,recompute"]}, ("none",)),
    ],
)
def test_recomputation_is_narrowed_by_kind(options: Any, kinds: tuple[str, ...]) -> None:
    assert read_narrowing(**options).kinds == kinds


@pytest.mark.parametrize(
    "text",
    ["recompute == full or tp > 1", "not recompute == full", "recompute + tp > 2", "recompute"],
)
def test_recomputation_stands_by_itself(text: str) -> None:
    assert "recompute may be compared only by itself" in problem_of(where=[text])


@pytest.mark.parametrize(
    ("feature", "column", "legal"),
    [
        ("offload", "offload", [True, False]),
        ("interleaving", "vpp", [False, True, False]),
        ("sequence-parallel", "sequence_parallel", [True, False]),
        ("context-parallel", "cp", [False, True, False]),
        ("expert-parallel", "ep", [False, True, False]),
        ("tensor-parallel", "tp", [False, True, False]),
        ("pipeline", "pp", [False, True, False]),
        ("hybrid-sharding", "dp_replicate", [False, True, False]),
    ],
)
def test_forbidden_features_leave_what_does_without(
    context_of: Contexts, feature: str, column: str, legal: list[bool]
) -> None:
    [rule] = read_narrowing(forbid=[feature]).rules
    assert verdicts(rule, context_of(), **{column: list(range(len(legal)))}) == legal


@pytest.mark.parametrize("name", NOT_COVERED)
def test_what_is_not_modelled_is_refused_by_name(name: str) -> None:
    with pytest.raises(InputError) as caught:
        read_narrowing(allow=[f"{name}:topk_ratio=0.1"])
    assert f"are not covered; given '{name}:topk_ratio=0.1'" in caught.value.problems[0].message


def test_allowed_names_are_kept_and_make_no_rule() -> None:
    narrowing = read_narrowing(allow=["cross-domain-tp,offload", "pipeline"])
    assert narrowing.allowed == {"cross-domain-tp", "offload", "pipeline"}
    assert (narrowing.rules, narrowing.kinds) == ((), LAYER_POLICY_NAMES)


@pytest.mark.parametrize("name", ["short-context-parallel", "large-micro-batch"])
def test_what_is_always_searched_needs_no_word(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} is always searched"):
        read_narrowing(allow=[name])


def test_one_option_can_be_dropped() -> None:
    narrowing = read_narrowing(
        fix=["tp=8,recompute=none"],
        where=["pp in (2, 4) and tp*cp <= 8"],
        forbid=["offload"],
        allow=["cross-domain-tp"],
    )
    assert narrowing.without("--fix tp=8").values == {}
    assert narrowing.without("--forbid offload").kinds == ("none", "offloaded")
    assert narrowing.without("--fix recompute=none").kinds == ("none", "selective", "full")
    assert narrowing.without("--allow cross-domain-tp").allowed == frozenset()
    [rule] = narrowing.without("--where pp in (2, 4) and tp*cp <= 8").rules
    assert rule.name == "--forbid offload"
    with pytest.raises(ValueError, match="is none of"):
        narrowing.without("--fix tp=4")


def test_all_problems_are_reported_at_once_each_under_its_option() -> None:
    problems = problems_of(
        fix=["tpp=8, tp=zero", "schedule=1f1"],
        limit=["pp <"],
        where=["micro_batchs > 2 and gpu < 8"],
        allow=["cross-domain"],
        forbid=["piplne"],
    )
    expected = (
        ("--fix", ["did you mean tp"]),
        ("--fix", ["tp takes whole numbers from 1 to 1,048,576, not 'zero'"]),
        ("--fix", ["did you mean 1f1b?"]),
        ("--limit", ["given 'pp <'"]),
        (
            "--where",
            ["unknown name 'micro_batchs'; allowed are tp, cp", "mean micro_batch", "'gpu'"],
        ),
        ("--allow", ["did you mean cross-domain-tp?"]),
        ("--forbid", ["did you mean pipeline?"]),
    )
    for (key, message), (option, parts) in zip(problems, expected, strict=True):
        assert key == option
        assert all(part in message for part in parts)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no expression"),
        ("tp.real < 3", "unknown name 'tp.real'; allowed are tp, cp, pp"),
        ("abs(tp) < 3", "abs(tp) is not allowed"),
        ("tp[0] < 3", "tp[0] is not allowed"),
        ("tp ** 2 < 3", "tp ** 2 is not allowed"),
        ("tp / 2 < 3", "tp / 2 is not allowed"),
        ("tp < 1.5", "no whole number"),
        ("tp < 9999999999", "at most 1,000,000,000"),
        ("tp is 8", "comparisons with =="),
        ("tp = 8", "compare with =="),
        ("1or 2", "is no expression"),
        ("tp < 3\0", "is no expression"),
        ("tp", "compare it"),
        ("1 < 2", "must name a dimension"),
        ("tp in ()", "an empty list"),
        ("tp == none", "is no whole number"),
        ("tp == 'eight'", "is no whole number"),
        ("offload > none", "has names, not sizes"),
        ("offload == host", "offload cannot be 'host'; allowed are none, optimizer:host"),
        ("offload == 0", "offload cannot be '0'"),
        ("recompute == some", "recompute cannot be 'some'; allowed are none, selective, full"),
        ("+".join(["tp"] * 60) + " < 3", "nested too deeply"),
        ("-" * 900 + "tp < 3", ""),
        ("(" * 900, ""),
        ("not " * 240 + "tp < 3", ""),
        ("tp < " + "1" * 2000, "at most 1000 characters; given 2005"),
    ],
)
def test_what_is_no_condition_is_refused(text: str, message: str) -> None:
    assert message in problem_of(where=[text])


@pytest.mark.parametrize(
    ("option", "texts", "message"),
    [
        ("limit", ["tp <= 8 and pp > 1", "not tp <= 8", "tp"], "must be one comparison"),
        ("fix", ["tp", "tp=", "=8", ""], ""),
        (
            "fix",
            ["tp=0", "zero=4", "offload_percent=101", "tp=8|", "gpus=-1"],
            "takes whole numbers",
        ),
    ],
)
def test_a_limit_is_one_comparison_and_fixing_takes_a_name_and_values_of_it(
    option: str, texts: list[str], message: str
) -> None:
    for text in texts:
        assert message in problem_of(**{option: [text]})


def test_too_many_options_are_refused() -> None:
    assert "at most 100" in problem_of(limit=[f"tp<={number}" for number in range(10, 210)])


@pytest.mark.parametrize("option", ["tp", "gpus", "recompute", "sp"])
def test_a_dimension_is_fixed_once(option: str) -> None:
    first, second = ("none", "full") if option == "recompute" else ("0", "1")
    if option in ("tp", "gpus"):
        first, second = "4", "8"
    message = problem_of(fix=[f"{option}={first}", f"{option}={second}"])
    assert f"--fix {option}={first}" in message
    assert f"--fix {option}={second}" in message
    assert read_narrowing(fix=[f"{option}={first}", f" {option} = {first}"])


GIVEN = {"fix": ["tp=8,pp=4,dp=2,gpus=128", *(f"{name}=1" for name in OTHERS)]}
GIVEN["limit"] = [f"{name}<=1" for name in OTHERS]


@pytest.mark.parametrize(
    ("options", "texts", "hint"),
    [
        ({"fix": ["tp=8"], "limit": ["tp<=4"]}, "", "nearest that would do is tp=4"),
        ({"fix": ["pp=3|5"], "where": ["pp % 4 == 0"]}, "", "nearest that would do is pp=4"),
        ({"fix": ["cp=2"], "forbid": ["context-parallel"]}, "", "nearest that would do is cp=1"),
        (
            {"fix": ["schedule=zb-v"], "where": ["schedule in (gpipe, 1f1b)"]},
            "",
            "what would do is schedule=1f1b|gpipe",
        ),
        (
            GIVEN,
            "--fix tp=8, --fix pp=4, --fix cp=1, --fix dp=2, --fix gpus=128",
            "nearest that would do is dp=4",
        ),
        ({"limit": ["tp<=4,tp>=8"]}, "--limit tp<=4, --limit tp>=8", "no tp among whole"),
        ({"limit": ["pp<=8,tp<1"]}, "--limit tp<1", "leaves no tp"),
        ({"fix": ["recompute=full"], "forbid": ["recompute"]}, "", "leave nothing"),
        ({"allow": ["offload"], "forbid": ["offload"]}, "", "contradict"),
    ],
)
def test_contradictions_name_both_sides(options: Any, texts: str, hint: str) -> None:
    message = problem_of(**options)
    all_of = [f"--{name} {text}" for name, given in options.items() for text in given]
    assert all(text in message for text in (texts.split(", ") if texts else all_of))
    assert hint in message


WORDS = st.sampled_from(
    [
        *("tp", "pp", "gpus", "sp", "on", "offload", "none", "schedule", "1f1b", "zb-v"),
        *("recompute", "full", "in", "not", "and", "or", "is", "lambda", "f'", "'", '"'),
        *("<=", "==", "!=", "=", "+", "*", "**", "//", "%", "-", "8", "0", "1.5"),
        *("(", ")", "[", "]", "{", "}", ",", "|", ":", "\\"),
    ]
)
TEXTS = st.text(max_size=60) | st.lists(WORDS, max_size=25).map(" ".join)


@given(text=TEXTS)
@settings(max_examples=120)
def test_whatever_is_given_is_read_or_refused(text: str) -> None:
    for option in ("fix", "limit", "where", "allow", "forbid"):
        try:
            narrowing = read_narrowing(**{option: [text]})
        except InputError:
            continue
        for rule in narrowing.rules:
            columns = {name: np.array([1, 0, 2]) for name in rule.needs}
            if "num_micro_batches" not in text:
                assert rule.is_legal(None, columns).shape == (3,)  # type: ignore[arg-type]
        for other in narrowing.texts:
            assert other not in narrowing.without(other).texts
