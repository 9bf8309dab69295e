"""What to type instead of words that are refused, where what was meant by them is known."""

import re
from collections.abc import Collection, Mapping, Sequence
from os.path import lexists

from planner.catalog import EXAMPLE_ACCELERATOR
from planner.errors import InputError, Problem
from planner.query.words import FORMER, OF_CLUSTER, QUESTIONS, SAME_OPTIONS, leading

EXAMPLE_MODEL, EXAMPLE_CLUSTER = "llama3-8b", f"8x{EXAMPLE_ACCELERATOR}"
# Options that a problem with one is mended by: by the option, and words of what is wrong.
MENDED_BY = {
    ("--emit", "needs a folder"): ("--out", "run"),
    ("--fix", "what the layout is"): QUESTIONS["why"],
    ("--tokens", "tokens of the whole job"): QUESTIONS["job"],
    ("--deadline", "needs --tokens"): QUESTIONS["job"],
    ("--budget", "needs --tokens"): QUESTIONS["job"],
    ("--budget", "needed (or --min-tokens-per-s)"): ("--deadline", "30d"),
}


def instead(words: list[str], problems: Collection[Problem] = ()) -> list[str]:
    """The command that does what was meant by words that are refused; empty where none is known.

    Without problems, an argument is missing or too many, or an option is none.
    """
    command, *rest = words or [""]
    if command in FORMER:
        before, behind = FORMER[command]
        return [*before, *rest, *behind]
    hint = r"'([^']+)'.*did you mean ([^,?]+)"
    made, nearest = words, [re.search(hint, each.message) for each in problems]
    # What else is wrong would be refused again.
    for found in nearest if all(nearest) else ():
        assert found is not None
        spelled = re.compile(rf"^([0-9]+x|.*=)?{re.escape(found[1])}(?==|$)")
        made = [spelled.sub(rf"\g<1>{found[2]}", word) for word in made]
    if made == words and command in QUESTIONS:
        made = [command, *_mended(command, rest, problems)]
    return made if made != words else []


def _mended(command: str, words: list[str], problems: Collection[Problem]) -> list[str]:
    """The words of a question with what was meant or is needed."""
    for problem in problems if len(problems) == 1 else ():
        for (key, text), mend in MENDED_BY.items():
            if key == problem.key and text in problem.message:
                return [*words, *mend]
        trains = r"(--profile \S+) or --framework [\w, ]+ trains it"
        if profile := re.search(trains, problem.message):
            return [*words, *profile[1].split()]
        if problem.key == "--global-batch" and "whole number" in problem.message:
            return [f"{word}-tokens" if word == problem.key else word for word in words]
    made = _said_here(command, words)
    if made == words and problems:
        is_place = {problem.where for problem in problems} <= {"models", "cluster"}
        made = _swapped(words) if is_place else words
    elif made == words:
        made = _completed(command, words)
    if command == "plan" and "--out" in made and "--emit" not in made:
        usual = "accelerate" if "--train" in made else "megatron"
        is_named = "--framework" in made[:-1]
        made = [*made, "--emit", made[made.index("--framework") + 1] if is_named else usual]
    return made


def _said_here(command: str, words: Sequence[str]) -> list[str]:
    """The words with options of other programs said as here."""
    made, machine, left = list[str](), dict[str, str](), list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        same = SAME_OPTIONS.get(name)
        if name in OF_CLUSTER and command != "size":
            machine[OF_CLUSTER[name]] = value if equals or not left else left.pop(0)
        elif same is None:
            made.append(word)
        elif " " not in same:
            made += [same, *([value] if equals else [])]
        else:
            made += same.split()
            # Elsewhere such a switch may have a value, or a file of its own.
            if left and (left[0] in ("true", "on", "1") or left[0].endswith(".json")):
                left.pop(0)
    if not machine:
        return made
    places = leading(made)[:2]
    model, machine_name = (*places, *(EXAMPLE_MODEL, EXAMPLE_ACCELERATOR)[len(places) :])
    return [model, _cluster(machine.get("name") or machine_name, machine), *made[len(places) :]]


def _cluster(name: str, machine: Mapping[str, str]) -> str:
    """So many GPUs or nodes of a machine, whose own count does not matter."""
    from planner.catalog.clusters import load_cluster

    name = re.sub(r"^\s*[0-9]+\s*[xX*]\s*", "", name)
    try:
        node = load_cluster(f"1x{name}").node
        size = (node.whole or node).num_accelerators
        per_node = int(machine.get("per_node", size))
        gpus = int(machine.get("gpus", 0)) or int(machine.get("nodes", 1)) * per_node
    except (InputError, ValueError):
        return f"8x{name}"
    # A name is that of an accelerator, or of a node of several.
    return f"{gpus if node.whole else max(1, gpus // size)}x{name}"


def _swapped(words: list[str]) -> list[str]:
    """The words with model and cluster the other way round where only that can be meant."""
    from planner.catalog.models import meant_name

    places = leading(words)
    if len(places) < 2 or not meant_name(places[1]) or not _is_cluster(places[0]):
        return words
    return [places[1], places[0], *words[2:]]


def _completed(command: str, words: list[str]) -> list[str]:
    """The words with what the command needs besides, and a cluster of several words as one."""
    places = leading(words)
    if len(places) > 2 and _is_cluster(" ".join(places[1:])):
        return [places[0], " ".join(places[1:]), *words[len(places) :]]
    behind, needed = words[len(places) :], QUESTIONS[command]
    is_file = len(places) == 1 and lexists(places[0])
    # What is wrong with whole questions is an option that is none; files need options.
    if (len(places) < 2 or command in ("emit", "export")) and not {*needed[:1]} & set(behind):
        behind += needed
    if not words or (len(places) == 1 and not is_file):
        places = [*places, *(EXAMPLE_MODEL, EXAMPLE_CLUSTER)[len(places) :]]
    return [*places, *behind]


def _is_cluster(text: str) -> bool:
    from planner.catalog.clusters import load_cluster

    try:
        load_cluster(text)
    except InputError:
        return False
    return True
