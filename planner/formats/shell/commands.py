"""Goes through the tree of a script in the order of its text, without running anything.

Assignments count in order; those under conditions where the test is known or all branches agree.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from planner.formats.shell.conditions import holds
from planner.formats.shell.expansion import WORDS, Value, Words, appended, spaced
from planner.formats.shell.slurm import DIRECTIVE, slurm_variables
from planner.formats.shell.syntax import TangledError, UnclosedError, parsed
from planner.formats.shell.word import Part, Quote, Word, split_words

if TYPE_CHECKING:
    from tree_sitter import Node

Arm = tuple[bool | None, "Iterable[Node]"]
"""Whether the condition of a branch holds, None where that is not known; and its statements."""
MAX_DEPTH = 100
"""Of statements in each other; a script with more is refused."""
MAX_SHELLS = 3
"""Of shells that are handed their commands by another."""
_COST = 100
"""Of a command, in characters: functions that run each other end."""
_EXPORTS = ("export", "declare", "typeset", "readonly", "local")
_REDIRECTIONS = ("file_redirect", "heredoc_redirect", "herestring_redirect")
_COMMANDS = (
    *("command", "declaration_command", "unset_command"),
    *("variable_assignment", "variable_assignments"),
)
_NESTED = ("list", "pipeline", "negated_command", "subshell", "compound_statement", "command")
_SHELL = re.compile(r"\b(?:bash|sh|zsh|sbatch|srun|ssh)\b|\.(?:sbatch|slurm)\b")
"""In a command whose here-document is a script."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """Words of a command, and variables set for it alone."""

    words: tuple[Word, ...]
    environment: dict[str, Word]
    outer: tuple[Word, ...] = ()
    """Words of what starts the shell that it runs in: commands, and sbatch's in comments."""
    is_read_twice: bool = False
    """Whether another shell hands it on: ``eval``, ``bash -c``, a here-document."""
    end: int | None = None
    """Behind its last written word; None where that stands for the words of several commands."""


@dataclass(kw_only=True)
class _Branch:
    """A branch that may be passed over."""

    before: dict[str, Value | None]
    """What variables that a branch of the statement sets held before it."""
    names: dict[str, None] = field(default_factory=dict)
    """Those that this branch sets."""
    leaves: bool = False
    """Whether it ends the script."""


@dataclass(kw_only=True)
class Shell(Words):
    """What a script has done so far."""

    commands: list[Command] = field(default_factory=list)
    exported: dict[str, None] = field(default_factory=dict)
    functions: "dict[str, tuple[Word, Node]]" = field(default_factory=dict)
    """By name the text that defines them, and their body."""
    outer: tuple[Word, ...] = ()
    branch: _Branch | None = None
    depth: int = 0
    called: set[str] = field(default_factory=set)

    def run_all(self) -> None:
        """Run the whole text; raises UnclosedError, TangledError and TooLongError."""
        root = parsed(self.source.text)
        for node in root.children:
            if node.type == "comment" and self.text(node).startswith(DIRECTIVE):
                span = (node.start_byte, node.end_byte)
                self.outer += split_words(Word(parts=tuple(self.source.cut(*span))))
        self.values |= slurm_variables(self.outer)
        self._run(root)
        for name in list(self.functions):
            if name not in self.called:
                self._call(name, None)

    def _run(self, node: "Node") -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TangledError(f"statements are nested more than {MAX_DEPTH} deep")
        match node.type:
            case "if_statement":
                self._choose(self._branches_of_if(node))
            case "case_statement":
                self._choose(self._branches_of_case(node))
            case "list":
                self._list(node)
            case "function_definition":
                name, body = node.children_by_field_name("name"), node.children[-1]
                self.functions[self.text(name[0])] = (self.source, body)
            case "redirected_statement" if node.children[0].type in _COMMANDS:
                self._command(node)
            case kind if kind in _COMMANDS:
                self._command(node)
            case kind if kind not in (*WORDS, "comment", "test_command", "heredoc_body"):
                self._forget_counter(node)
                self._run_each(node.children, are_stray=kind == "ERROR")
        self.depth -= 1

    def _list(self, node: "Node") -> None:
        """``a && b`` or ``a || b``; comments and words that belong to neither may stand between."""
        left, *rest = node.children
        self._run(left)
        found, is_and = holds(self, left), any(each.type == "&&" for each in rest)
        self._choose([(found if is_and or found is None else not found, rest)])

    def _run_each(self, nodes: "Iterable[Node]", *, are_stray: bool = False) -> None:
        """Statements; words that belong to none are a command, line by line."""
        strays: list[Node] = []
        for node in nodes:
            is_stray = are_stray and node.type in (*WORDS, "variable_assignment")
            if strays and not (is_stray and self._is_one_line(strays[-1], node)):
                self._words(strays)
                strays = []
            if is_stray:
                strays.append(node)
            else:
                self._run(node)
        self._words(strays)

    def _is_one_line(self, left: "Node", right: "Node") -> bool:
        between = self.source.text[left.end_byte : right.start_byte]
        return "\n" not in between.replace("\\\n", "")

    def _branches_of_if(self, node: "Node") -> Iterator[Arm]:
        then = next((i for i, n in enumerate(node.children) if n.type == "then"), 1)
        conditions, body = node.children[1:then], node.children[then:]
        self._run_each(conditions)
        last = next((each for each in reversed(conditions) if each.is_named), None)
        clauses = ("elif_clause", "else_clause")
        yield holds(self, last) if last else None, [n for n in body if n.type not in clauses]
        for each in body:
            if each.type == "elif_clause":
                yield from self._branches_of_if(each)
            elif each.type == "else_clause":
                yield True, each.children

    def _branches_of_case(self, node: "Node") -> Iterator[Arm]:
        value = self.joined(node.children_by_field_name("value"))
        for item in node.children:
            if item.type == "case_item":
                patterns = item.children_by_field_name("value")
                found = {self._matches(value, pattern) for pattern in patterns}
                rest = (each for each in item.children if each not in patterns)
                yield True if True in found else None if None in found else False, rest

    def _matches(self, value: Word, pattern: "Node") -> bool | None:
        word = self.joined([pattern])
        is_known = word.text == "*" or not (value.unknown or word.unknown)
        return fnmatchcase(value.text, word.text) if is_known else None

    def _choose(self, arms: Iterable[Arm]) -> None:
        """Run the branches that may run; variables then hold what all of them agree on."""
        outer, num_ends = self.branch, 1
        before: dict[str, Value | None] = {}
        ends: dict[str, list[Value | None]] = {}
        for holds_here, body in arms:
            if holds_here is False:
                continue
            branch = self.branch = _Branch(before=before)
            self._run_each(body)
            self.branch = outer
            for name in branch.names:
                if not branch.leaves:
                    ends.setdefault(name, []).append(self.values.get(name))
                self._hold(name, before[name])
            num_ends += not branch.leaves
            if holds_here:
                num_ends -= 1
                break
        for name, old in before.items():
            found = ends.get(name, [])
            passed = [old] if len(found) < num_ends or not found else []
            self._note(name)
            self._hold(name, _agreed(name, [*passed, *found]))

    def _hold(self, name: str, value: Value | None) -> None:
        if value is None:
            self.values.pop(name, None)
        else:
            self.values[name] = value

    def _note(self, name: str) -> None:
        """A variable is about to be set in a branch."""
        if self.branch:
            self.branch.before.setdefault(name, self.values.get(name))
            self.branch.names[name] = None

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._note(name)
            self.values.pop(name, None)

    def _forget_counter(self, node: "Node") -> None:
        """The variable of a loop is one word after another."""
        counters = [*node.children_by_field_name("variable")]
        for each in node.children_by_field_name("initializer"):
            counters += each.children_by_field_name("name")
        self._forget(map(self.text, counters))

    def _command(self, node: "Node") -> None:
        """A command with what stands behind its redirections, and what is nested in it."""
        self._words([node] if node.type == "variable_assignment" else list(self._pieces(node)))
        body = node.children[0] if node.type == "redirected_statement" else node
        nested = [each for each in body.children if each.type in _NESTED]
        for here in node.children_by_field_name("redirect"):
            if here.type == "heredoc_redirect":
                nested += [each for each in here.children if each.type in _NESTED]
                self._heredoc(node, here)
        self._run_each(nested)

    def _pieces(self, node: "Node") -> "Iterator[Node]":
        """Written words and assignments."""
        for each in node.children:
            if each.type in (*WORDS, "variable_assignment"):
                yield each
            elif each.type in ("command_name", *_COMMANDS):
                yield from self._pieces(each)
            elif each.type in _REDIRECTIONS:
                words = [word for word in each.children if word.type in WORDS]
                yield from words[each.type != "heredoc_redirect" :]
            elif not (each.child_count or each.is_missing or each.type == "comment"):
                yield each

    def _heredoc(self, node: "Node", here: "Node") -> None:
        """A here-document that a shell reads, at once or from the file that it becomes."""
        start, body = (
            next((each for each in here.children if each.type == kind), None)
            for kind in ("heredoc_start", "heredoc_body")
        )
        if start is None or body is None:
            return
        head = self.source.text[node.start_byte : body.start_byte]
        if not _SHELL.search(head):
            return
        first, last = body.start_byte, body.end_byte
        if set("'\"\\") & set(self.text(start)):
            text = Word(parts=tuple(self.source.cut(first, last)))
        else:
            text = self.joined([body], Quote("<<", first, last))
        words = self.commands[-1].words if self.commands else ()
        self.hand_on(text, self._exported(), (*self.outer, *words))

    def _words(self, nodes: "list[Node]") -> None:
        """A command of so many written words."""
        if not nodes:
            return
        self.budget.spend(_COST)
        first = self.text(nodes[0])
        if first in _EXPORTS:
            for node in nodes[1:]:
                name = node.children[0] if node.type == "variable_assignment" else node
                if node is not name:
                    self._assign(node)
                if first != "local":
                    self.exported[self.text(name)] = None
            return
        assigned = list(takewhile(lambda each: each.type == "variable_assignment", nodes))
        words = tuple(word for each in nodes[len(assigned) :] for word in self.words(each))
        if len(assigned) == len(nodes):
            for each in assigned:
                self._assign(each)
        elif words:
            found = {name: value for name, value, _ in map(self._assigned, assigned)}
            own = {name: value for name, value in found.items() if isinstance(value, Word)}
            is_once = self.arguments is None and not self.num_shells
            self._started(words, own, self._span(nodes[-1])[1] if is_once else None)

    def _started(self, words: tuple[Word, ...], own: dict[str, Word], end: int | None) -> None:
        name = words[0].text
        if name in ("exit", "return") and self.branch:
            self.branch.leaves = True
        elif name in ("unset", "read"):
            self._forget(word.text for word in words[1:])
        elif name == "shift" and self.arguments:
            count = words[1].text if len(words) > 1 else "1"
            self.arguments = self.arguments[int(count) if count in "123456789" else 1 :]
        elif name in self.functions:
            self._call(name, words[1:])
        elif name in ("echo", "printf"):
            return
        elif name == "eval":
            shell = replace(self, source=spaced(words[1:]))
            self._within(shell, lambda: shell._run(parsed(shell.source.text)))
        else:
            exported = self._exported() if self.num_shells else {}
            inherited = {name: one for name, one in exported.items() if not isinstance(one, tuple)}
            command = Command(
                words=words,
                environment={**inherited, **own},
                outer=self.outer,
                is_read_twice=self.num_shells > 0,
                end=end,
            )
            self.commands.append(command)
            for word in words:
                if " " in word.text:
                    self.hand_on(word, {**self._exported(), **own}, (*self.outer, *words))

    def _call(self, name: str, arguments: tuple[Word, ...] | None) -> None:
        """Run a function; one that runs already is passed over."""
        text, body = function = self.functions.pop(name)
        self.called.add(name)
        branch = self.branch and replace(self.branch)
        shell = replace(self, source=text, arguments=arguments, branch=branch)
        shell._run(body)
        self.functions.setdefault(name, function)

    def _exported(self) -> dict[str, Value]:
        return {name: self.values[name] for name in self.exported if name in self.values}

    def hand_on(self, text: Word, values: dict[str, Value], outer: tuple[Word, ...]) -> None:
        """A text that another shell reads as a script, if it can be one."""
        fresh: dict[str, Any] = {"exported": {}, "functions": {}, "branch": None, "called": set()}
        shell = replace(self, source=text, values=values, outer=outer, arguments=None, **fresh)
        self._within(shell, shell.run_all)

    def _within(self, shell: "Shell", run: Callable[[], None]) -> None:
        if self.num_shells < MAX_SHELLS:
            shell.num_shells += 1
            with suppress(UnclosedError, TangledError):
                run()

    def _assign(self, node: "Node") -> None:
        name, value, grows = self._assigned(node)
        if value is None:
            self._forget([name])
            return
        if not (grows and self.branch and name not in self.branch.before):
            self._note(name)
        self.values[name] = value

    def _assigned(self, node: "Node") -> tuple[str, Value | None, bool]:
        """The variable, what it is set to, and whether that holds what it held."""
        target, sign, *written = node.children
        name = self.text(target)
        if target.type == "subscript":
            return name.partition("[")[0], None, False
        array = next((each for each in written if each.type == "array"), None)
        value: Value
        if array:
            elements = (each for each in array.children if each.type in WORDS)
            value = tuple(word for each in elements for word in self.words(each))
        else:
            value = self.joined(written)
        own = re.escape(name)
        repeats = re.search(rf"\$({own}\b|\{{{own}[\[}}])", self.text(node)) is not None
        if sign.type == "+=":
            value = appended(self.values.get(name), value)
            self.budget.spend(len(spaced(value).text))
        return name, value, repeats or sign.type == "+="


def _agreed(name: str, found: list[Value | None]) -> Value | None:
    """What is held whichever branch ran; where branches differ it is not known."""
    by_text = {spaced(each or ()).text.strip(): each for each in found}
    given = [each for text, each in by_text.items() if text]
    if len(given) < 2:
        return given[0] if given else next(iter(by_text.values()))
    place = next((part.place for each in given for part in spaced(each or ()).parts), (0, 0))
    return Word(parts=(Part(f"${{{name}}}", place, place, is_known=False),))
