"""Spoils files: what editors, merges, broken copies and bad intent make of a sound one."""

import re
from collections.abc import Callable, Sequence
from random import Random

MAX_BYTES = 30_000
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORD = re.compile(rb"[A-Za-z_][\w.-]*")
_VALUE = re.compile(rb"\"[^\"\n]*\"|[\w.-]+")
EXTREMES = tuple(
    text.encode()
    for text in (
        *("NaN", "nan", ".nan", "Infinity", "-inf", ".inf", "1e999", "-1e999", "1e308", "1e-320"),
        *("-1", "0", "-0.0", "1", "2", "3", "7"),
        *("0.5", "1_000", "0x10", "1:30", "1e3", "+5", "010"),
        *("2147483648", "9223372036854775808", "18446744073709551616", "1" + "0" * 400),
        *("9" * 5000, "1" + "0" * 4000, "true", "false", "null", "~", "yes", "[]", "{}", "[[[1]]]"),
        *("[true]", "[1, null]", '{"a": {"b": []}}', '""', '"\\u0000"', '"\\ud800"', "''", "'"),
        *("2001-01-01", "!!binary aGk=", "!!set {a}", "!!python/object:os.system x", "&a [*a]"),
        *(
            "*a",
            "<<: *a",
            "${X}",
            "$((1/0))",
            "$(",
            "`",
            '"auto"',
            "auto",
            "all",
            "none",
            "1,2",
            ",",
        ),
        *("!!timestamp x", "!!int ''", "!!bool x", "!!float x", "!!int abc", "0x" + "f" * 5000),
        *("65536", "10000000", "1000000000", "-5", "inf", "1e400", "0b1", "1.", ".5", "\u0664"),
    )
)
HOSTILE = (
    *(bytes([number]) for number in (0, 1, 7, 8, 11, 12, 13, 27, 31, 127, 128, 192, 254, 255)),
    *(b'"', b"'", b"\\", b"\n", b"\r\n", b"\r", b"\t", b"#", b"//", b"/*", b"*/", b":", b": "),
    *(b",", b"=", b"--", b"-", b"$", b"${", b"}", b"]", b"[", b"{", b"(", b")", b"`", b"|", b">"),
    *(b"&", b"&a ", b"*a", b"<<", b"!", b"%", b"@", b"?", b"? ", b"- ", b"---\n", b"...\n", b";"),
    *(b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"]]>", b"<![CDATA[", b"&lt;", b"::"),
    *("\u2028\u0085\u202e\u200b\ufeff\ufffe\U0001f600\U0010ffff\u0130\u00df".encode(), b"%0A"),
    *("\u2028".encode(), "\u0085".encode(), "\u0130".encode(), "\uff11".encode(), b"[red]", b"[/]"),
)
NESTS = (b"[", b"{", b'{"a":', b'["a",', b"- ", b"$(", b"$((", b"(", b"${", b"? ", b"a: [", b"!x ")
MERGES = (b"<<<<<<< ours\n", b"=======\n", b">>>>>>> theirs\n")
BOMB = b"a: &a [x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (at, at, b", ".join([b"*%c" % (at - 1)] * 9)) for at in range(98, 108)
)


def mutated(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """The data after one to six changes; ``others`` lend what is spliced in."""
    for _ in range(min(6, 1 + int(random.expovariate(0.8)))):
        data = random.choice(_CHANGES)(data, others, random)[:MAX_BYTES]
    return data


def _span(data: bytes, random: Random, longest: int = 64) -> tuple[int, int]:
    start = random.randint(0, len(data))
    return start, min(len(data), start + random.randint(1, longest))


def _delete(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    start, end = _span(data, random)
    return data[:start] + data[end:]


def _repeat(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    start, end = _span(data, random, 200)
    return data[:end] + data[start:end] * random.choice((1, 1, 1, 2, 10, 300)) + data[end:]


def _swap(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    (a, b), (c, d) = sorted((_span(data, random), _span(data, random)))
    c, d = max(b, c), max(b, d)
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def _truncate(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    return data[: random.randint(0, len(data))]


def _splice(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    other, at = random.choice(others), random.randint(0, len(data))
    start, end = _span(other, random, 300)
    return data[:at] + other[start:end] + data[at:]


def _insert(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    at = random.randint(0, len(data))
    return data[:at] + random.choice(HOSTILE) * random.choice((1, 1, 1, 2, 40)) + data[at:]


def _nest(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    at = random.randint(0, len(data))
    return data[:at] + random.choice(NESTS) * random.choice((1, 3, 70, 1500, 9000)) + data[at:]


def _flip(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    at = random.randint(0, len(data))
    return data[:at] + bytes([random.randrange(256)]) + data[at + 1 :]


def _encode(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    changes: tuple[Callable[[], bytes], ...] = (
        lambda: data.replace(b"\n", b"\r\n"),
        lambda: data.replace(b"\n", b"\r"),
        lambda: b"\xef\xbb\xbf" + data,
        lambda: data.decode("utf-8", "replace").encode("utf-16"),
        lambda: data.replace(b"\n", "\u2028".encode()),
        lambda: data.replace(b"  ", b"\t"),
        lambda: BOMB + data,
        lambda: data + b"\n" + BOMB,
        lambda: MERGES[0] + data + MERGES[1] + data + MERGES[2],
    )
    return random.choice(changes)()


def _with_lines(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    lines = data.splitlines(keepends=True) or [data]
    at, to = random.randrange(len(lines)), random.randrange(len(lines))
    kind = random.randrange(4)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(to, lines[at])
    elif kind == 2:
        lines[at], lines[to] = lines[to], lines[at]
    else:
        lines.insert(to, random.choice(random.choice(others).splitlines(keepends=True) or [b""]))
    return b"".join(lines)


def _replacing(
    pattern: re.Pattern[bytes], chosen: Callable[[Sequence[bytes], Random], bytes]
) -> Callable[[bytes, Sequence[bytes], Random], bytes]:
    def change(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
        places = [found.span() for found in pattern.finditer(data)]
        if not places:
            return data
        start, end = random.choice(places)
        return data[:start] + chosen(others, random) + data[end:]

    return change


def _lent(pattern: re.Pattern[bytes]) -> Callable[[Sequence[bytes], Random], bytes]:
    def chosen(others: Sequence[bytes], random: Random) -> bytes:
        return random.choice(pattern.findall(random.choice(others)) or [b"x"])

    return chosen


def _extreme(others: Sequence[bytes], random: Random) -> bytes:
    return random.choice(EXTREMES)


_NUMBER_TO_EXTREME = _replacing(_NUMBER, _extreme)
_CHANGES = (
    *(_delete, _repeat, _swap, _truncate, _splice, _insert, _insert, _nest, _flip, _encode),
    *(_with_lines, _with_lines, _NUMBER_TO_EXTREME, _NUMBER_TO_EXTREME, _NUMBER_TO_EXTREME),
    *(_replacing(_VALUE, _extreme), _replacing(_WORD, _lent(_WORD))),
    *(_replacing(_NUMBER, _lent(_NUMBER)), _replacing(_VALUE, _lent(_VALUE))),
)
