"""Shell words with their places: of a script, of a file of arguments, of a list of words.

Nothing is executed. Quotes, comments, continued lines, arrays and simple variables are
understood, ``${NAME}`` and ``${NAME:-default}`` among them; what is not stays as it is written.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from planner.errors import InputError
from planner.frameworks.format import SourceText

ENTRY = re.compile(r"(^|[/.])(torchtitan\.train|train\.py|run_train\.sh)$")
"""Behind this word of a command stand torchtitan's own."""
MAX_LENGTH = 1000
"""Of a word with variables in it; a longer one is left as it is written."""
_PIECE = (
    r"""\$\{[^}\n]{0,300}\}|\$\([^)\n]{0,300}\)|[^\s'"\\;&|()<>]|\\.|'[^']*'|"(?:[^"\\]|\\.)*+\""""
)
_TOKEN = re.compile(
    rf"(?P<space>(?:[^\S\n]|\\\r?\n)++)|(?P<comment>\#[^\n]*+)|(?P<word>(?:{_PIECE})++)"
    r"|(?P<open>\()|(?P<close>\))|(?P<end>[\n;&|<>])",
    re.DOTALL,
)
_PART = re.compile(_PIECE, re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=", re.ASCII)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?-([^}]*))?\}|([A-Za-z_]\w*))", re.ASCII)
_LIST = re.compile(r'"?\$\{?([A-Za-z_]\w*)(?:\[[@*]\])?\}?"?', re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word and where it stands in the file."""

    text: str
    """Without quotes, variables resolved."""
    start: int
    end: int
    line: int
    is_open: bool = False
    """It holds a variable whose value the file does not give."""


@dataclass(frozen=True, kw_only=True)
class Words:
    """torchtitan's words of a file, and the variables that are set in it."""

    words: tuple[Word, ...]
    variables: Mapping[str, str]
    names_program: bool
    """Whether the file is a script that starts torchtitan."""


@dataclass(kw_only=True)
class _Script:
    """Commands of a file, with variables and lists as they are set one after the other."""

    source: SourceText
    variables: dict[str, str] = field(default_factory=dict)
    lists: dict[str, list[Word]] = field(default_factory=dict)
    commands: list[list[Word]] = field(default_factory=list)
    filled: str = ""
    """Name of the list that the words belong to, inside its brackets."""

    def run(self) -> None:
        command: list[Word] = []
        raw = self.source.text
        for kind, word in _tokens(self.source):
            text = raw[word.start : word.end]
            if kind == "close" and self.filled:
                self.filled = ""
            elif kind == "word" and self.filled:
                self.lists[self.filled].append(self._resolved(word))
            elif kind == "open" and self.lists.get(_name_of(raw, word.start)) == []:
                self.filled = _name_of(raw, word.start)
            elif kind in ("end", "open", "close"):
                self.commands.append(command)
                command = []
            elif not self._assigned(word, is_first=not command):
                command += self._expanded(word, text)
        self.commands.append(command)

    def _assigned(self, word: Word, *, is_first: bool) -> bool:
        raw = self.source.text[word.start : word.end]
        match = _ASSIGNMENT.match(raw)
        if match is None or not is_first:
            return is_first and raw == "export"
        name, value = match[1], raw[match.end() :]
        if value:
            start = word.start + match.end()
            self.variables[name] = self._resolved(replace(word, start=start)).text
            if value[0] in "\"'" and value[1:].lstrip().startswith("--"):
                inner = replace(self.source, text=value[1:-1])
                self.lists[name] = [
                    self._resolved(_moved(each, start + 1, word.line)) for each in _plain(inner)
                ]
        else:
            self.lists[name] = []
        return True

    def _expanded(self, word: Word, raw: str) -> list[Word]:
        match = _LIST.fullmatch(raw)
        if match and match[1] in self.lists:
            return self.lists[match[1]]
        return [self._resolved(word)]

    def _resolved(self, word: Word) -> Word:
        """Take the quotes off and put variables in."""
        parts, is_open = [], False
        for match in _PART.finditer(self.source.text, word.start, word.end):
            text, part_open = self._part(match[0])
            parts.append(text)
            is_open |= part_open
        text = "".join(parts)
        if "$" in text and not self._is_quoted(word):
            text, is_open = self._filled_in(text)
        return replace(word, text=text, is_open=is_open)

    def _is_quoted(self, word: Word) -> bool:
        return self.source.text[word.start : word.start + 1] == "'"

    def _part(self, part: str) -> tuple[str, bool]:
        if part[0] == "'":
            return part[1:-1], False
        if part[0] == '"':
            return re.sub(r"\\([\"\\$`])", r"\1", part[1:-1]), False
        return (part[1:] if part[0] == "\\" else part), False

    def _filled_in(self, text: str) -> tuple[str, bool]:
        def value(match: re.Match[str]) -> str:
            name, default = match[1] or match[3], match[2]
            default = match[0] if default is None else _bare(default)
            return self.variables.get(name, default)

        filled = _VARIABLE.sub(value, text) if len(text) <= MAX_LENGTH else text
        return (filled, "$" in filled) if len(filled) <= MAX_LENGTH else (text, True)


def _bare(text: str) -> str:
    """A default without the quotes around it, as a shell takes it."""
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if is_quoted else text


def _name_of(text: str, bracket: int) -> str:
    """The name in ``NAME=(`` or ``NAME+=(``, from the bracket's place; else empty."""
    match = re.search(r"([A-Za-z_]\w*)\+?=$", text[max(0, bracket - 200) : bracket], re.ASCII)
    return match[1] if match else ""


def _moved(word: Word, offset: int, line: int) -> Word:
    return replace(
        word, start=word.start + offset, end=word.end + offset, line=word.line + line - 1
    )


def _plain(source: SourceText) -> Iterator[Word]:
    return (word for kind, word in _tokens(source) if kind == "word")


def _tokens(source: SourceText) -> Iterator[tuple[str, Word]]:
    text, position, line = source.text, 0, 1
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            what = "a quote is not closed" if text[position] in "\"'" else "a character alone"
            message = f"cannot be read as words: {what} here: {text[position : position + 20]!r}"
            raise InputError.single(source.path, f"line {line}", message)
        kind = match.lastgroup or ""
        if kind not in ("space", "comment"):
            yield kind, Word(text=match[0], start=match.start(), end=match.end(), line=line)
        line += text.count("\n", position, match.end())
        position = match.end()


def words_of(source: SourceText) -> Words:
    """Return torchtitan's words; raises InputError where a quote is not closed.

    In a script they stand behind the program; a file without it holds nothing else.
    """
    script = _Script(source=source)
    script.run()
    for command in script.commands:
        for index, word in enumerate(command):
            if ENTRY.search(word.text):
                rest = tuple({each.start: each for each in command[index + 1 :]}.values())
                return Words(words=rest, variables=script.variables, names_program=True)
    every = tuple(word for command in script.commands for word in command)
    return Words(words=every, variables=script.variables, names_program=False)
