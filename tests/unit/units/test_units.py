from collections.abc import Callable

import numpy as np
import pytest

from planner.units import (
    GIB,
    ceil_div,
    format_bytes,
    format_count,
    format_seconds,
    parse_batch_tokens,
    parse_bytes,
    parse_count,
    parse_duration,
    parse_usd,
)

READ: dict[Callable[[str], float], dict[float, str]] = {
    # Counts have decimal suffixes; 2.01 * 1000 is 2009.9999999999998 in binary, 2.01k is 2010.
    parse_count: {
        1: "1",
        1024: "1024",
        1500: "1.5k",
        4_000_000: " 4M |4m",
        300 * 10**9: "300B|300G",
        15 * 10**12: "15T|1.5e13",
        2_500_000_000: "2.5b",
        2010: "2.01k",
        4030: "4.03k",
        8060: "8.06k",
        1001: "1.001k",
        16_400: "16.4k",
        4_190_000: "4.19M",
        1_970_000_000_000: "1.97T",
    },
    # k and M of a batch of tokens are those of lengths.
    parse_batch_tokens: {
        4 * 2**20: "4M",
        2**14: "16k",
        3 * 2**19: "1.5M",
        4_000_000: "4000000",
        10**9: "1B",
    },
    # Sizes are decimal or binary as written.
    parse_bytes: {
        4096.0: "4096",
        350e9: "350GB",
        97.5e6: "97.5 MB",
        64 * 2**20: "64MiB",
        1e3: "1kB",
        2048.0: "2Ki",
        1.5e12: "1.5TB",
    },
    parse_duration: {
        45.0: "45s",
        5400.0: "90m|90min|1 hour 30 minutes",
        43200.0: "12h",
        1.5 * 86400: "1d12h| 1D 12H |1.5d",
        14 * 86400.0: "2w",
        15 * 86400.0: "2 weeks 1 day",
        30 * 86400.0: "30d|30 days",
    },
    parse_usd: {2e6: "2M", 5e5: "500k", 1.5e6: "$1.5M", 1.2e5: "120000", 3e6: "3 M USD"},
}
REFUSED: tuple[tuple[Callable[[str], float], str, list[str]], ...] = (
    (parse_count, "not a count: '4 MB'; allowed are .*4M", ["4 MB"]),
    (
        parse_count,
        "not a (count|positive whole number)",
        ["", "0", "-3", "1.5", "0.1k5", "k", "1e-6", "0.0001k", "1,000"],
    ),
    (parse_batch_tokens, "count|whole number", ["4Q", "0", "-1M", "1.0000001M"]),
    (parse_bytes, "not a size", ["", "GB", "1XB", "-1GB", "1iB", "1e9", "0", "0.1", "1,000"]),
    (
        parse_duration,
        "not a span (of time|above 0)",
        ["", "30", "d", "-3d", "0d", "12h1d", "1d1d", "30 dayz", "1e3s"],
    ),
    (parse_usd, "not an amount", ["", "$", "0", "-1", "1,000", "2M EUR", "1e6"]),
)
SHOWN: dict[Callable[[float], str], dict[float, str]] = {
    format_bytes: {
        80 * GIB: "80.00 GiB",
        GIB / 10: "0.10 GiB",
        GIB / 16: "64.00 MiB",
        5 * 2**20: "5.00 MiB",
        2**10: "1.00 KiB",
        12: "12 B",
        0: "0 B",
        -3 * GIB: "-3.00 GiB",
        2345.5 * GIB: "2,345.50 GiB",
        10 * 2**40: "10.00 TiB",
        -1.5 * 2**60: "-1,572,864.00 TiB",
    },
    # The unit that keeps three digits.
    format_seconds: {
        0: "0 s",
        5e-10: "0.5 ns",
        2.5e-6: "2.5 µs",
        0.0123: "12.3 ms",
        1.5: "1.5 s",
        119: "119 s",
        150: "2.5 min",
        9000: "2.5 h",
        86400 * 3: "3.0 days",
        -0.5: "-500 ms",
    },
    format_count: {
        512: "512",
        9999: "9999",
        12_345: "12.3k",
        4_194_304: "4.19M",
        70.6e9: "70.6B",
        15e12: "15T",
    },
}


@pytest.mark.parametrize(
    ("parse", "value", "text"),
    [
        (parse, value, text)
        for parse, values in READ.items()
        for value, texts in values.items()
        for text in texts.split("|")
    ],
)
def test_amounts_are_read(parse: Callable[[str], float], value: float, text: str) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "said", "text"),
    [(parse, said, text) for parse, said, texts in REFUSED for text in texts],
)
def test_what_is_no_amount_is_refused(parse: Callable[[str], float], said: str, text: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(text)


@pytest.mark.parametrize(
    ("shown", "value", "text"),
    [(shown, value, text) for shown, values in SHOWN.items() for value, text in values.items()],
)
def test_amounts_are_shown(shown: Callable[[float], str], value: float, text: str) -> None:
    assert shown(value) == text


def test_amounts_just_below_a_unit_are_shown_without_an_exponent() -> None:
    # 999,600 is "1000k" or "1M", never "1e+03k".
    assert not [count for count in (999_600, 999.7e6, 999.9e9) if "e" in format_count(count)]
    assert not [each for each in (0.9996, 9.9996e-4) if "e" in format_seconds(each).split()[0]]


def test_ceil_div_rounds_up_and_broadcasts() -> None:
    # 7/3 -> 3, 9/3 -> 3, 10/3 -> 4
    assert ceil_div(np.array([7, 9, 10]), np.array(3)).tolist() == [3, 3, 4]
    assert ceil_div(np.array(50257), np.array([1, 8])).tolist() == [50257, 6283]
