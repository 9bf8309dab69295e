"""What is wrong with words that are refused, and what to type instead where that is known."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial, reduce
from os.path import lexists
from pathlib import Path
from typing import Any

from planner.catalog import EXAMPLE_CLUSTER, EXAMPLE_MODEL
from planner.cli.app import COMMANDS, USAGE_ERROR, command_of
from planner.cli.options import own_defaults
from planner.errors import InputError, PlannerError, Problem, alike, did_you_mean, nearest
from planner.notes import COMMAND_LINE, Problems
from planner.query.options import FIXED, OPTIONS, PLACES
from planner.query.query import Query
from planner.query.words import (
    OF_CLUSTER,
    QUESTIONS,
    SAME_OPTIONS,
    elsewhere,
    leading,
    meant_word,
)


def refused(error: Any, words: Sequence[str]) -> Iterator[Problem]:  # noqa: ANN401 - typer's
    """Yield what typer finds wrong with words: every option that is none, else what it says."""
    command = error.ctx.command if error.ctx else command_of(words[0])
    own = {flag: each for each in command.params for flag in each.opts}
    command_words = [word for word in words[:1] if word in COMMANDS]
    listing = f"`{shlex.join(['planner', *command_words, '--help'])}` lists what is taken"
    if hasattr(error, "possibilities"):
        others = (word for word in words if word not in {*own, *error.ctx.help_option_names})
        names = [word for word in others if word.startswith(("--", error.option_name))]
        for name in dict.fromkeys(names or [error.option_name]):
            near = alike(name, [flag for flag in own if flag.startswith("-")], 0.75)
            hint = f"given '{name}'; did you mean {near}?" if near else listing
            yield Problem(
                where=COMMAND_LINE,
                key=name,
                message=elsewhere(name) or f"is no option here; {hint}",
            )
        return
    told = error.format_message().replace("Value error, ", "").rstrip(".")
    told = re.sub(r"\. Did you mean '([^']+)'.*", r"; did you mean \1?", told)
    key, *known = re.findall("'([^']+)'", told) or ["WORDS"]
    given, *known = known or [key]
    hint = (
        did_you_mean(meant_word(key, given, known), known)
        or f"{getattr(own.get(key), 'help', '')} {listing}".strip()
    )
    told = told.rpartition(f"'{key}': ")[2]
    yield Problem(where=COMMAND_LINE, key=key, message=f"{told}; {hint}")


def instead(words: list[str], problems: Sequence[Problem] = (), tries: int = 3) -> list[str]:
    """The command that was meant by refused words, else one that lists what is known."""
    made = _meant(words, problems)
    again = _refused_again(made) if made else ()
    if made and not again:
        return made
    if again and tries:  # what is told of one problem may show another
        return instead(made, again, tries - 1)
    answers = re.search("`planner ([^`]+)`", " ".join(each.message for each in problems))
    places = shlex.join(_placed("plan", leading(words[1:])))
    return shlex.split(answers[1].replace("MODEL CLUSTER", places)) if answers else []


def _refused_again(words: list[str]) -> Sequence[Problem]:
    """What would be refused of a question, which is read and not answered."""
    from planner.query.resolve import resolve

    command, *rest = words
    if command not in QUESTIONS or len(leading(rest)) < 2:
        return ()
    try:
        context = command_of(command).make_context(command, rest, default_map=own_defaults())
        given = {name: context.params.get(name) for name in (*PLACES, *OPTIONS)}
        resolve(Query.of(**given), num_gpus=1 if command == "size" else None)
    except USAGE_ERROR as error:
        return tuple(refused(error, words))
    except PlannerError as error:
        return getattr(error, "problems", ())
    return ()


def _meant(words: list[str], problems: Sequence[Problem]) -> list[str]:
    """The words as a command of the program, with what is told of each problem."""
    made = reduce(_with_told, problems, words)
    command, *rest = made or [""]
    if command == "compare" and rest and not any(map(lexists, rest)):
        return ["plan", *_placed("plan", leading(rest)), "--framework", "any"]
    if command in (*QUESTIONS, "check"):
        made = [command, *_mended(command, rest, problems)]
    if command == "explain" and "--like" in made:  # which takes the job of a file, not its layout
        return ["check", made[-1], "--model", made[1], "--cluster", made[2]]
    # An option that is none may be left out where something else is mended.
    known = {*SAME_OPTIONS, *OF_CLUSTER, *made}
    lost = any(word.startswith("--") and word not in known for word in words)
    is_other = bool(set(made) - set(words)) if lost else made != words
    return made if is_other else []


def _with_told(words: list[str], problem: Problem) -> list[str]:
    """The words with what a message tells: what was meant, a value, an option that is needed."""
    message, option = problem.message, problem.key
    if meant := re.search(r"'([^']+)'.*did you mean ([^,?]+)", message):
        spelled = re.compile(rf"^([0-9]+x|.*=)?{re.escape(meant[1])}(?==|$)")
        return [spelled.sub(rf"\g<1>{meant[2]}", word) for word in words]
    if option == "--global-batch" and "whole number" in message:
        return [f"{word}-tokens" if word == option else word for word in words]
    if said := re.search("such as (--.+)", message):
        return [*words, *said[1].split()]
    other = r"(?:needs|belongs to|given \w+;) (--[a-z-]+)"
    allowed = rf"(?:{other}|such as|allowed are(?! \w+ such)) (?!or\b)([^ ,;\]]+)"
    needs, value = re.search(other, message), re.search(allowed, message)
    option = needs[1] if needs else option
    is_lacking = needs or option in words or re.search("needed|Missing", message)
    if not (is_lacking and value and option.startswith("--")):
        return words
    place = words.index(option) if option in words else len(words)
    return [*words[:place], option, value[2], *words[place + 2 :]]


def _mended(command: str, words: list[str], problems: Sequence[Problem]) -> list[str]:
    """The words of a question with what was meant or is needed."""
    if command == "check":
        return _said_here(command, words)
    said = _said_here(command, _like(words, problems))
    made = _completed(command, said)
    is_lacking = not problems or re.search(
        "Missing|No such command|Got unexpected|no such plan",
        " ".join(each.message for each in problems),
    )
    # Of a name that is none, no other may be told instead.
    if said == words and not is_lacking and sorted(made) != sorted(words):
        made = words
    if command == "plan" and "--out" in made and "--emit" not in made:
        usual = "accelerate" if "--train" in made else "megatron"
        is_named = "--framework" in made[:-1]
        made = [*made, "--emit", made[made.index("--framework") + 1] if is_named else usual]
    return made


def _like(words: list[str], problems: Sequence[Problem]) -> list[str]:
    """The words with a file that is no model behind ``--like``, if it says a job."""
    from planner.query.like import places_of

    files = {Path(each.where) for each in problems if "planner check" in each.message}
    made = words
    for word in (each for each in leading(words) if lexists(each) and Path(each) in files):
        made = [each for each in made if each != word]
        with suppress(PlannerError):
            made = [*places_of(word).values(), *made, "--like", word]
    return made


def _said_here(command: str, words: Sequence[str]) -> list[str]:
    """The words with options of other programs said as here."""
    flags = {flag for each in command_of(command).params for flag in each.opts}
    made, machine, left = list[str](), dict[str, str](), list(words)
    while left:
        word = left.pop(0)
        is_lost = word[:2] == "--" and word not in flags
        same = SAME_OPTIONS.get(
            f"{command} {word}", SAME_OPTIONS.get(word, "" if is_lost else word)
        )
        if word in OF_CLUSTER and not same:
            machine[OF_CLUSTER[word]] = left.pop(0) if left else ""
        elif same == word or (same and " " not in same):
            made.append(same)
        else:
            # Elsewhere such a switch may have a value, or a file of its own.
            has_value = ("{}" in same or len(leading(made)) > 1) and left and left[0][:1] != "-"
            made += same.format(left.pop(0) if has_value else "").split()
    if not machine:
        return made
    places = leading(made)
    model, cluster, *items = _placed(command, places)
    cluster = _cluster(machine.get("name") or cluster, machine)
    return [model, cluster, *items, *made[len(places) :]]


def _cluster(name: str, machine: Mapping[str, str]) -> str:
    """So many GPUs or nodes of a machine, whose own count does not matter."""
    from planner.catalog.clusters import load_cluster

    name = re.sub(r"^\s*[0-9]+\s*[xX*]\s*", "", name)
    try:
        node = load_cluster(f"1x{name}").node
        size = (node.whole or node).num_accelerators
        in_nodes = int(machine.get("nodes", 1)) * int(machine.get("per_node", size))
        gpus = int(machine.get("gpus", 0)) or in_nodes
    except (InputError, ValueError):
        return f"8x{name}"
    # A name is that of an accelerator, or of a node of several.
    return f"{gpus if node.whole else max(1, gpus // size)}x{name}"


def _placed(command: str, places: list[str]) -> list[str]:
    """Model, cluster and item to explain, in whatever order; examples where none is given."""
    from planner.catalog import list_models
    from planner.catalog.clusters import load_cluster
    from planner.catalog.models import meant_name

    model = next((word for word in places if meant_name(word) or lexists(word)), None)
    near = (word for word in places if re.search("[0-9]", word) and nearest(word, list_models(), 1))
    rest = [word for word in places if word != model]
    texts = [*(" ".join(rest[:size]) for size in range(len(rest), 1, -1)), *rest]
    clusters = (text for text in texts if Problems().read(partial(load_cluster, text)))
    cluster = next(clusters, EXAMPLE_CLUSTER)
    items = [word for word in rest if word not in cluster and command == "explain"]
    return [model or next(near, EXAMPLE_MODEL), cluster, *items]


def _completed(command: str, words: list[str]) -> list[str]:
    """The words with what the command needs besides; a layout's as ``--fix`` takes them."""
    places, behind = leading(words), words[len(leading(words)) :]
    is_file = len(places) == 1 and lexists(places[0])
    layout = re.compile(rf"[a-z_]+=\S+|({'|'.join(FIXED)})[0-9]+")
    fixed = [word for word in places if layout.fullmatch(word)]
    # What is wrong with whole questions is an option that is none; files need options.
    if len(places) < 2 or command in ("emit", "export"):
        needed = (pair for pair in QUESTIONS[command].items() if pair[0] not in behind)
        behind += [word for pair in needed for word in pair]
    if words and not is_file:
        places = _placed(command, [word for word in places if word not in fixed])
    for word in fixed:
        behind += ["--fix", re.sub("(?<=[a-z])(?=[0-9]+$)", "=", word)]
    return [*(places or (EXAMPLE_MODEL, EXAMPLE_CLUSTER)), *behind]
