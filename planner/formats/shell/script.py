"""Goes through a script in the order of its text, without running anything.

Assignments count in order; those under conditions where the test is known or all branches agree.
Whatever else sets a variable makes it unknown, and a word that names it says so.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from planner.errors import InputError
from planner.formats.format import SourceText
from planner.formats.shell.expansion import WORDS, Expander, Value
from planner.formats.shell.word import (
    SBATCH,
    SLURM_VARIABLES,
    Char,
    Command,
    Lines,
    ScriptError,
    Word,
    launcher_values,
    parsed,
    spaced,
    split_words,
)

if TYPE_CHECKING:
    from tree_sitter import Node

# Whether the condition of a branch holds, None where that is not known; and its statements.
Arm = tuple[bool | None, "Iterable[Node]"]
# Of statements in each other; a script with more is refused.
MAX_DEPTH = 100
# Nodes in which nothing is a statement.
_NO_STATEMENTS = (*WORDS, "comment", "test_command", "heredoc_body")


@dataclass(kw_only=True)
class Script(Expander):
    """State of a script up to the present command."""

    commands: list[Command] = field(default_factory=list)
    exported: dict[str, None] = field(default_factory=dict)
    functions: "dict[str, Node]" = field(default_factory=dict)  # bodies by name
    in_function: bool = False
    outer: tuple[Word, ...] = ()
    assigned: dict[str, None] = field(default_factory=dict)
    """Variables that the branch sets which is run."""
    depth: int = 0
    unread: list[tuple[int, str]] = field(default_factory=list)
    """Places of what is not looked into, in words."""

    @property
    def environment(self) -> dict[str, Word]:
        """Exported variables that hold one text."""
        return {
            name: value[0]
            for name in self.exported
            if (value := self.values.get(name)) and len(value) == 1
        }

    def kept(self) -> list[Command]:
        """Commands that variables hold: a script may hand them on in ways not understood."""
        found: list[Command] = []
        for value in self.values.values():
            chars = value[0].chars if value and len(value) == 1 else ()
            line = (c._replace(text=" ") if c.text == "\n" else c for c in chars)
            Script(source=(), commands=found)._hand_on(line, self.values)
        return [replace(each, is_kept=True) for each in found]

    def run(self) -> None:
        """Run the whole text; raises ScriptError."""
        root = parsed(self.text)
        for node in root.children:
            if node.type == "comment" and self.written(node).startswith(SBATCH):
                start, end = self.span(node)
                self.outer += split_words(Word(self.source[start:end]))
        for option, word in launcher_values(self.outer):
            self.values |= dict.fromkeys(SLURM_VARIABLES.get(option, ()), (word,))
        self._run(root)

    def _run(self, node: "Node") -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ScriptError(f"statements are nested more than {MAX_DEPTH} deep")
        match node.type:
            case "if_statement":
                self._choose(self._branches_of_if(node))
            case "case_statement":
                self._choose(self._branches_of_case(node))
            case "list":
                self._choose(self._branches_of_list(node))
            case "function_definition":
                name = self.written(node.children_by_field_name("name")[0])
                self.functions[name] = node.children[-1]
            case "variable_assignment":
                self._assign(node)
            case "declaration_command" | "unset_command":
                self._declare(node)
            case "command":
                self._command(node, node)
            case "redirected_statement" if node.children[0].type == "command":
                self._command(node, node.children[0])
            case _:
                self._forget_variable(node)
                self._run_each(node.children)
        self.depth -= 1

    def _forget_variable(self, loop: "Node") -> None:
        """The variable of a loop is one word after another."""
        self._forget(loop.children_by_field_name("variable"))
        for each in loop.children_by_field_name("initializer"):
            self._forget(each.children_by_field_name("name"))

    def _run_each(self, nodes: "Iterable[Node]") -> None:
        for node in nodes:
            if node.type not in _NO_STATEMENTS:
                self._run(node)

    def _branches_of_list(self, node: "Node") -> Iterator[Arm]:
        """``a && b`` or ``a || b``; comments and words that belong to neither may stand between."""
        left, *rest = node.children
        self._run_each([left])
        found = self.holds(left)
        is_and = any(each.type == "&&" for each in rest)
        yield found if is_and or found is None else not found, rest

    def _branches_of_if(self, node: "Node") -> Iterator[Arm]:
        types = [each.type for each in node.children]
        then = types.index("then") if "then" in types else 1
        conditions, body = node.children[1:then], node.children[then:]
        self._run_each(conditions)
        last = next((each for each in reversed(conditions) if each.is_named), None)
        clauses = ("elif_clause", "else_clause")
        own = [each for each in body if each.type not in clauses]
        yield self.holds(last) if last else None, own
        for each in body:
            if each.type == "elif_clause":
                yield from self._branches_of_if(each)
            elif each.type == "else_clause":
                yield True, each.children

    def _branches_of_case(self, node: "Node") -> Iterator[Arm]:
        value = self.joined(node.children_by_field_name("value"))
        for item in (each for each in node.children if each.type == "case_item"):
            written = item.children_by_field_name("value")
            patterns = [self.joined([each]) for each in written]
            is_known = not (value.unknown or any(each.unknown for each in patterns))
            texts = [each.text for each in patterns]
            met = "*" in texts or any(fnmatchcase(value.text, each) for each in texts)
            rest = [each for each in item.children if each not in written]
            yield met if is_known or "*" in texts else None, rest

    def _choose(self, arms: Iterable[Arm]) -> None:
        """Run the branches that may run; variables then hold what all of them agree on.

        What a branch adds to a variable stays, as if all of them ran.
        """
        before, outer = dict(self.values), self.assigned
        # At first what is left where no branch runs.
        ends: list[dict[str, Value | None]] = [{}]
        changed: dict[str, None] = {}
        for is_met, body in arms:
            if is_met is False:
                continue
            self.assigned = {}
            self._run_each(body)
            ends.append({name: self.values.get(name) for name in self.assigned})
            self.values |= {name: before.get(name) for name in self.assigned}
            changed |= self.assigned
            if is_met:
                ends = ends[1:]
                break
        self.assigned = outer
        for name in changed:
            self._set(name, _agreed(name, [end.get(name, before.get(name)) for end in ends]))

    def _set(self, name: str, value: Value | None) -> None:
        self.assigned[name] = None
        self.values[name] = value

    def _forget(self, names: "Iterable[Node]") -> None:
        for each in names:
            self._set(self.written(each), None)

    def _assign(self, node: "Node") -> None:
        target, sign = node.children[:2]
        own = self.written(target).partition("[")[0]
        value = self._assigned(node)
        name = re.escape(own)
        reference = rf"\$({name}\b|\{{{name}[\[}}])"
        grows = sign.type == "+=" or re.search(reference, self.written(node))
        if grows and target.type != "subscript":
            self.values[own] = value
        else:
            self._set(own, value)

    def _assigned(self, node: "Node") -> Value | None:
        """Return the value that a variable is set to; None if only a part of it is set."""
        target, sign, *written = node.children
        if target.type == "subscript":
            return None
        array = next((each for each in written if each.type == "array"), None)
        if array:
            elements = (each for each in array.children if each.type in WORDS)
            value = tuple(word for each in elements for word in self.words(each))
        else:
            value = (self.joined(written),)
        old = self.values.get(self.written(target)) if sign.type == "+=" else ()
        if old and array:
            value = (*old, *value)
        elif old:
            first, *others = old
            value = (Word(first.chars + value[0].chars), *others)
        self.budget.spend(sum(len(word.chars) for word in value))
        return value

    def _declare(self, node: "Node") -> None:
        sign, *rest = node.children
        for each in rest:
            if each.type == "variable_assignment":
                self._assign(each)
            if sign.type == "unset":
                self._forget([each])
            if sign.type == "export":
                name = each.children[0] if each.type == "variable_assignment" else each
                self.exported[self.written(name)] = None

    def _command(self, node: "Node", body: "Node") -> None:
        """A command with what stands behind its redirections, and what is nested in it."""
        # So many characters for a command: functions that run each other end.
        self.budget.spend(100)
        own = {
            self.written(each.children[0]): value[0]
            for each in body.children
            if each.type == "variable_assignment" and (value := self._assigned(each))
        }
        pieces = list(self._pieces(node))
        words = tuple(word for each in pieces for word in self.words(each))
        if words:
            _, end = self.span(pieces[-1])
            self._start(words, own, None if self.num_shells or self.in_function else end)
        heredocs = [each for each in node.children if each.type == "heredoc_redirect"]
        for here in heredocs:
            self._heredoc(node, here)
        for each in (body, *heredocs):
            self._run_each(inner for inner in each.children if inner.type != "variable_assignment")

    def _pieces(self, node: "Node") -> "Iterator[Node]":
        """The written words of a command, also those behind its redirections."""
        for each in node.children:
            if each.type in WORDS:
                yield each
            elif each.type in ("command", "command_name"):
                yield from self._pieces(each)
            elif each.type in ("file_redirect", "heredoc_redirect", "herestring_redirect"):
                words = [word for word in each.children if word.type in WORDS]
                yield from words[each.type != "heredoc_redirect" :]

    def _heredoc(self, node: "Node", here: "Node") -> None:
        """A here-document that a shell reads, at once or from the file that it becomes."""
        parts = {each.type: each for each in here.children}
        start, body = parts.get("heredoc_start"), parts.get("heredoc_body")
        if start is None or body is None:
            return
        shells = r"\b(?:bash|sh|zsh|sbatch|srun|ssh)\b|\.(?:sbatch|slurm)\b"
        if re.search(shells, self.text[node.start_byte : body.start_byte]):
            words = self.commands[-1].words if self.commands else ()
            text = self.joined([body], "<<").chars
            if set("'\"\\") & set(self.written(start)):
                text = self.source[slice(*self.span(body))]
            self._hand_on(text, {}, words)

    def _start(
        self,
        words: tuple[Word, ...],
        own: dict[str, Word],
        end: int | None,
    ) -> None:
        name = words[0].text
        if name in ("read", "mapfile", "readarray", "getopts", "let"):
            # What these set variables to nobody knows.
            for word in words[1:]:
                self._set(word.text.partition("=")[0], None)
        elif name in self.functions:
            # A function that runs already is passed over.
            if len(words) > 1:
                self.unread.append((words[0].start, f"the arguments of {name}"))
            body, outer = self.functions.pop(name), self.in_function
            self.in_function = True
            self._run(body)
            self.in_function, self.functions[name] = outer, body
        elif name == "eval":
            self._hand_on(spaced(words[1:]), self.values)
        elif name not in ("echo", "printf"):
            inherited = self.environment if self.num_shells else {}
            environment = {**inherited, **own}
            self.commands.append(
                Command(words=words, environment=environment, launcher=self.outer, end=end)
            )
            values: dict[str, Value | None] = {name: (word,) for name, word in own.items()}
            for word in words:
                if " " in word.text:
                    self._hand_on(word.chars, values, words)

    def _hand_on(
        self,
        text: Iterable[Char],
        values: Mapping[str, Value | None],
        words: tuple[Word, ...] = (),
    ) -> None:
        """A text that another shell reads as a script, if it can be one."""
        # More shells that are handed their commands by another are none that people write.
        if self.num_shells == 3:
            return
        inherited = {name: (word,) for name, word in self.environment.items()}
        shell = Script(
            source=tuple(char for char in text if char.text),
            values={**inherited, **values},
            outer=(*self.outer, *words),
            commands=self.commands,
            budget=self.budget,
            num_shells=self.num_shells + 1,
            depth=self.depth,
        )
        with suppress(ScriptError):
            shell.run()


def _agreed(name: str, found: list[Value | None]) -> Value | None:
    """Return the value common to all branches; where branches differ it is not known."""
    by_text = {" ".join(word.text for word in value or ()).strip(): value for value in found}
    given = [value for text, value in by_text.items() if text]
    if len(given) < 2:
        return given[0] if given else found[-1]
    words = (word for value in given for word in value or ())
    place = next(char.place for word in words for char in word.chars)
    unknown = (Char(each, place, place, is_known=False) for each in f"${{{name}}}")
    return (Word(tuple(unknown)),)


def read_script(source: SourceText) -> Script:
    """The commands of a script.

    Raises InputError where a quote is not closed or variables grow without end.
    """
    with _refusing(source):
        return _script(source.text)


@lru_cache(maxsize=8)
def _script(text: str) -> Script:
    script = Script(source=_whole(text))
    script.run()
    return script


def read_words(source: SourceText) -> tuple[Word, ...]:
    """Words of a list of arguments in which no variable is known; raises InputError.

    Line ends only separate them, as in an array's brackets; other signs of the shell are text.
    """
    head, tail = "A=(", "\n\n)"
    substitution, sign = r"\$\((?:[^()]|\([^()]*+\))*+\)", "([;&|<>()])"
    masked = re.sub(
        f"{substitution}|{sign}", lambda found: "%" if found[1] else found[0], source.text
    )
    found: list[Word] = []
    with _refusing(source, shift=-len(head)):
        stack = [parsed(f"{head}{masked}{tail}")]
        words = Expander(source=_whole(source.text), shift=-len(head))
        while stack:
            node = stack.pop()
            is_inside = len(head) <= node.start_byte < len(head) + len(masked)
            if is_inside and node.type in WORDS:
                found += words.words(node)
            else:
                stack += reversed(node.children)
    return tuple(found)


def _whole(text: str) -> tuple[Char, ...]:
    spans = pairwise(range(len(text) + 1))
    return tuple(Char(each, span, span) for each, span in zip(text, spans, strict=True))


@contextmanager
def _refusing(source: SourceText, shift: int = 0) -> Iterator[None]:
    try:
        yield
    except ScriptError as error:
        where = "" if error.at is None else f"line {Lines(source.text).at(error.at + shift)}"
        raise InputError.single(source.path, where, str(error)) from None
