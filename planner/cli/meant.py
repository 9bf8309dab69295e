"""What to type instead of words that are refused, where what was meant by them is known."""

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from os.path import lexists

from planner.catalog import EXAMPLE_CLUSTER, EXAMPLE_MODEL
from planner.errors import InputError, PlannerError, Problem, nearest
from planner.query.words import OF_CLUSTER, OTHER_VALUES, QUESTIONS, SAME_OPTIONS, leading

# Options that a problem with one is mended by: by the option, and words of what is wrong.
MENDED_BY = {
    ("--emit", "needs a folder"): ("--out", "run"),
    ("--fix", "what the layout is"): QUESTIONS["why"],
    ("--lora-rank", "belongs to --train"): ("--train", "lora"),
    ("--tokens", "tokens of the whole job"): QUESTIONS["job"],
    ("--deadline", "needs --tokens"): QUESTIONS["job"],
    ("--budget", "needs --tokens"): QUESTIONS["job"],
    ("--deadline", "needed (or --min-tokens-per-s)"): ("--deadline", "30d"),
    ("file", "--model and"): ("--model", EXAMPLE_MODEL, "--cluster", EXAMPLE_CLUSTER),
    ("file", "--model needed"): ("--model", EXAMPLE_MODEL),
    ("file", "--cluster needed"): ("--cluster", EXAMPLE_CLUSTER),
}


def instead(words: list[str], problems: Collection[Problem] = ()) -> list[str]:
    """The command that was meant by refused words; problems are not those of mere arguments."""
    command, *rest = words or [""]
    if command == "compare" and rest and not any(map(lexists, rest)):
        return ["plan", *_placed("plan", leading(rest)), "--framework", "any"]
    hint = r"'([^']+)'.*did you mean ([^,?]+)"
    made, hints = words, [re.search(hint, each.message) for each in problems]
    # What else is wrong would be refused again.
    for found in hints if all(hints) else ():
        assert found is not None
        spelled = re.compile(rf"^([0-9]+x|.*=)?{re.escape(found[1])}(?==|$)")
        made = [spelled.sub(rf"\g<1>{found[2]}", word) for word in made]
    if made == words and command in (*QUESTIONS, "check"):
        made = [command, *_mended(command, rest, problems)]
    if command == "explain" and "--like" in made:  # which takes the job of a file, not its layout
        return ["check", made[-1], "--model", made[1], "--cluster", made[2]]
    # An option that is none may be left out where something else is mended.
    lost = any(word[:2] == "--" and word not in SAME_OPTIONS for word in {*words} - {*made})
    is_other = bool(set(made) - set(words)) if lost else made != words
    return made if is_other else []


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
    said = _said_here(command, words if command == "check" else _like(words))
    if command == "check":
        return said
    if "--deadline" in said and "--tokens" not in said:
        said += QUESTIONS["job"]
    made = _completed(command, said)
    places = {problem.where for problem in problems} <= {"models", "cluster"}
    # Of a name that is none, no other may be told instead.
    is_same = places and sorted(made) == sorted(words)
    keys = {each.key for each in problems}
    if problems and said == words and not is_same and not keys & {"PLAN-OR-MODEL", "model_type"}:
        made = words
    if command == "plan" and "--out" in made and "--emit" not in made:
        usual = "accelerate" if "--train" in made else "megatron"
        is_named = "--framework" in made[:-1]
        made = [*made, "--emit", made[made.index("--framework") + 1] if is_named else usual]
    return made


def _like(words: list[str]) -> list[str]:
    """The words with a configuration file among the places behind ``--like``."""
    from planner.query.like import places_of

    made = words
    for word in filter(lexists, leading(words)):
        with suppress(PlannerError):
            named = places_of(word).values()
            made = [*named, *(each for each in made if each != word), "--like", word]
    return made


def _said_here(command: str, words: Sequence[str]) -> list[str]:
    """The words with options of other programs said as here."""
    from planner.cli.app import command_of

    flags = {flag for each in command_of(command).params for flag in each.opts}
    made, machine = list[str](), dict[str, str]()
    left = [OTHER_VALUES.get(word, re.sub("^-(?=[0-9])", "", word)) for word in words]
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        same = SAME_OPTIONS.get(name, "" if name[:2] == "--" and name not in flags else None)
        if OF_CLUSTER.get(name) == "gpus" and command in ("check", "size"):
            made.append(f"--gpus{equals}{value}")
        elif name in OF_CLUSTER:
            machine[OF_CLUSTER[name]] = value if equals or not left else left.pop(0)
        elif same is None:
            made.append(word)
        elif same and " " not in same:
            made += [same, *([value] if equals else [])]
        else:
            # Elsewhere such a switch may have a value, or a file of its own.
            is_behind = "{}" in same or len(leading(made)) > 1
            if left and not equals and is_behind and not left[0].startswith("-"):
                value = left.pop(0)
            made += same.format(value).split()
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
        per_node = int(machine.get("per_node", size))
        gpus = int(machine.get("gpus", 0)) or int(machine.get("nodes", 1)) * per_node
    except (InputError, ValueError):
        return f"8x{name}"
    # A name is that of an accelerator, or of a node of several.
    return f"{gpus if node.whole else max(1, gpus // size)}x{name}"


def _placed(command: str, places: list[str]) -> list[str]:
    """Model, cluster and item to explain, in whatever order; examples where none is given."""
    from planner.catalog import list_models
    from planner.catalog.models import meant_name

    known = (word for word in places if meant_name(word) or lexists(word))
    numbered = (word for word in places if re.search("[0-9]", word))
    meant = (near[0] for word in numbered if (near := nearest(word, list_models(), 1)))
    model = next(known, None)
    rest = [word for word in places if word != model]
    together = (" ".join(rest[:size]) for size in range(len(rest), 1, -1))
    clusters = (text for text in (*together, *rest) if _is_cluster(text))
    cluster = next(clusters, EXAMPLE_CLUSTER)
    items = [word for word in rest if word not in cluster and command == "explain"]
    return [model or next(meant, EXAMPLE_MODEL), cluster, *items]


def _completed(command: str, words: list[str]) -> list[str]:
    """The words with what the command needs besides; a layout's as ``--fix`` takes them."""
    places, needed = leading(words), QUESTIONS[command]
    behind = words[len(places) :]
    is_file = len(places) == 1 and lexists(places[0])
    fixed = [word for word in places if re.fullmatch(r"[a-z_]+=\S+", word)]
    # What is wrong with whole questions is an option that is none; files need options.
    if (len(places) < 2 or command in ("emit", "export")) and not {*needed[:1]} & set(behind):
        behind += needed
    if words and not is_file:
        places = _placed(command, [word for word in places if word not in fixed])
    for word in fixed:
        behind += ["--fix", word]
    return [*(places or (EXAMPLE_MODEL, EXAMPLE_CLUSTER)), *behind]


def _is_cluster(text: str) -> bool:
    from planner.catalog.clusters import load_cluster

    with suppress(InputError):
        load_cluster(text)
        return True
    return False
