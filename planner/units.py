"""Units: the constants, how numbers are read from people (else ValueError) and shown to them.

Inside the program every quantity is in base units (bytes, seconds, FLOPs, bytes/s, FLOP/s).
"""

import re
from collections.abc import Mapping
from decimal import Decimal

import numpy as np
import numpy.typing as npt

from planner.limits import (
    MAX_BYTES,
    MAX_COUNT_DIGITS,
    MAX_DURATION_S,
    MAX_TOKENS,
    MAX_USD,
    brief,
)

# A scalar or a column of numbers; every cost function takes and returns these.
Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Index = npt.NDArray[np.intp]
# Positions, a mask, or a run, of the rows of a column.
Rows = Index | Mask | slice

KIB = 2**10
MIB = 2**20
GIB = 2**30
TIB = 2**40
GB = 10**9
GBIT_PER_S = 10**9 / 8
TERA = 10**12
US = 1e-6
HOUR_S = 3600.0
DAY_S = 86400.0

_COUNT_SIZES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
# A number, which a group holds.
_NUMBER = r"([0-9]+(?:\.[0-9]+)?)\s*"


def _matched(pattern: str, text: str, what: str, allowed: str) -> re.Match[str]:
    is_short = len(text) <= MAX_COUNT_DIGITS
    found = re.fullmatch(rf"\s*{pattern}\s*", text) if is_short else None
    if found is None:
        raise ValueError(f"not {what}: {brief(text)}; allowed are {allowed}")
    return found


def _checked(value: Decimal, most: int, text: str, what: str, *, holds: bool) -> Decimal:
    if not holds:
        raise ValueError(f"not {what}: {brief(text)}")
    if value > most:
        raise ValueError(f"too large: {brief(text)}; allowed is at most {most:.0e}")
    return value


def parse_count(text: str) -> int:
    """Read a positive count such as ``1024``, ``4M``, ``15T`` or ``2e12`` (k, M, B/G, T)."""
    pattern = r"([0-9]+(?:\.[0-9]+)?(?:[eE][0-9]{1,2})?)\s*([kKmMbBgGtT]?)"
    match = _matched(pattern, text, "a count", "numbers such as 1024, 4M or 15T")
    value = Decimal(match[1]) * _COUNT_SIZES[match[2].lower()]
    is_whole = value >= 1 and value == int(value)
    return int(_checked(value, MAX_TOKENS, text, "a positive whole number", holds=is_whole))


def parse_batch_tokens(text: str) -> int:
    """Read the tokens of a batch, k and M of which are 1,024 and 1,048,576, as of lengths."""
    # A batch of "4M tokens" is 4,194,304 in every paper: sequences have powers of two of tokens.
    lengths = {"k": (2**10, 10**3), "m": (2**20, 10**6)}
    number, of = lengths.get(text.rstrip()[-1:].lower(), (1, 1))
    return parse_count(text) * number // of


def parse_bytes(text: str) -> float:
    """Read a size such as ``350GB``, ``64MiB`` or ``4096`` (k to P: 1000, Ki to Pi: 1024)."""
    match = _matched(
        _NUMBER + "((?:[kKMGTP]i?)?)B?", text, "a size", "sizes such as 4096, 64MiB or 350GB"
    )
    unit = match[2].lower()
    power = 1 + "kmgtp".index(unit[0]) if unit else 0
    value = Decimal(match[1]) * (1024 if unit.endswith("i") else 1000) ** power
    what = "a size of at least one byte"
    return float(_checked(value, MAX_BYTES, text, what, holds=value >= 1))


def parse_usd(text: str) -> float:
    """Read an amount such as ``2M``, ``500k``, ``$1.5M`` or ``120000`` (suffixes k, M, B)."""
    pattern = rf"\$?\s*{_NUMBER}([kKmMbB]?)\s*(?:USD|usd)?"
    match = _matched(pattern, text, "an amount", "amounts such as 500k, 2M or $1.5M")
    value = Decimal(match[1]) * _COUNT_SIZES[match[2].lower()]
    return float(_checked(value, MAX_USD, text, "an amount above 0", holds=value > 0))


def parse_duration(text: str) -> float:
    """Read a span such as ``30d``, ``1d12h`` or ``90m`` in seconds, units from large to small."""
    units = "weeks?|w|days?|d|hours?|hrs?|h|minutes?|min|m|seconds?|s"
    part = rf"(?i:{_NUMBER}({units})(?![a-z])\s*)"
    kind = ("a span of time", "spans such as 30d, 2w, 1d12h or 90m")
    _matched(f"({part})+", text, *kind)
    parts = re.findall(part, text)
    unit_s = {"w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1}
    sizes = [unit_s[unit[0].lower()] for _, unit in parts]
    if sizes != sorted(set(sizes), reverse=True):
        raise ValueError(f"not {kind[0]}: {brief(text)}; allowed are {kind[1]}")
    spans = (Decimal(value) * size for (value, _), size in zip(parts, sizes, strict=True))
    seconds = sum(spans, Decimal(0))
    return float(_checked(seconds, MAX_DURATION_S, text, "a span above 0", holds=seconds > 0))


def ceil_div(numerator: Array | int, denominator: Array | int) -> Array:
    """Integer division rounded up; broadcasts."""
    quotient: Array = -(-np.asarray(numerator) // np.asarray(denominator))
    return quotient


def _reached(value: float, units: Mapping[str, float]) -> tuple[str, float]:
    """The first unit, from large to small, that a value reaches; else the last."""
    return next((one for one in units.items() if abs(value) >= one[1]), [*units.items()][-1])


def format_bytes(num_bytes: float) -> str:
    """Format bytes as GiB (2**30), MiB or KiB below a tenth of a GiB, TiB from ten TiB on."""
    if abs(num_bytes) >= 10 * TIB:
        return f"{num_bytes / TIB:,.2f} TiB"
    unit, size = _reached(10 * num_bytes, {"GiB": GIB, "MiB": MIB, "KiB": KIB, "B": 1})
    return f"{num_bytes / size:,.{0 if unit == 'B' else 2}f} {unit}"


def format_stage(stage: int, num_stages: int) -> str:
    """The GPUs that hold what a stage of a pipeline does: without a pipeline all of them."""
    return "each GPU" if num_stages == 1 else f"each GPU of pipeline stage {stage}"


def _three_digits(value: float) -> float:
    return float(f"{value:.3g}")


def format_seconds(seconds: float) -> str:
    """Format seconds as days, h, min, s, ms, µs or ns with about three digits."""
    if abs(seconds) >= 2 * DAY_S:
        return f"{format_days(seconds)} days"
    for unit, size in (("h", HOUR_S), ("min", 60.0)):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    rounded = _three_digits(seconds)
    unit, size = _reached(rounded, {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9})
    return "0 s" if seconds == 0 else f"{_three_digits(rounded / size):g} {unit}"


def format_days(seconds: float) -> str:
    """Format a span in days, with a decimal where there are fewer than a hundred."""
    days = seconds / DAY_S
    return f"{days:,.1f}" if days < 100.0 else f"{days:,.0f}"


def plural(number: int, noun: str) -> str:
    """A number of things: ``1 file``, ``1,024 files``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def format_count(count: float) -> str:
    """Format a count with a decimal suffix: 70.6B, 4.19M, 12.3k; whole below ten thousand."""
    if abs(count) < 1e4:
        return f"{count:.0f}"
    rounded = _three_digits(count)
    suffix, size = _reached(rounded, {"T": 1e12, "B": 1e9, "M": 1e6, "k": 1e3})
    return f"{_three_digits(rounded / size):g}{suffix}"


def format_energy(kwh: float) -> str:
    """Format energy: ``381 MWh``."""
    unit, size = _reached(kwh / 10.0, {"GWh": 1e6, "MWh": 1e3, "kWh": 1.0})
    return f"{kwh / size:,.0f} {unit}"
