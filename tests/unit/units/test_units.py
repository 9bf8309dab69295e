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


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1", 1),
        ("1024", 1024),
        (" 4M ", 4_000_000),
        ("4m", 4_000_000),
        ("1.5k", 1500),
        ("300B", 300 * 10**9),
        ("300G", 300 * 10**9),
        ("15T", 15 * 10**12),
        ("2.5b", 2_500_000_000),
    ],
)
def test_counts_are_read_with_decimal_suffixes(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["2.01k", "4.03k", "8.06k", "1.001k", "16.4k", "4.19M", "1.97T"])
def test_whole_counts_are_read_whatever_their_decimals_are_in_binary(text: str) -> None:
    # 2.01 * 1000 is 2009.9999999999998 in floating point, but 2.01k is the whole number 2010.
    scale = {"k": 3, "M": 6, "T": 12}[text[-1]]
    whole, decimals = text[:-1].split(".")
    assert parse_count(text) == int(whole + decimals) * 10 ** (scale - len(decimals))


@pytest.mark.parametrize(
    "text", ["", "0", "-3", "1.5", "0.1k5", "k", "4 MB", "1e6", "0.0001k", "1,000"]
)
def test_what_is_no_positive_whole_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a (count|positive whole number)"):
        parse_count(text)


def test_the_refusal_shows_the_text_and_what_is_allowed() -> None:
    with pytest.raises(ValueError, match=r"not a count: '4 MB'; allowed are .*4M"):
        parse_count("4 MB")


def test_ceil_div_rounds_up_and_broadcasts() -> None:
    # 7/3 -> 3, 9/3 -> 3, 10/3 -> 4
    assert ceil_div(np.array([7, 9, 10]), np.array(3)).tolist() == [3, 3, 4]
    assert ceil_div(np.array(50257), np.array([1, 8])).tolist() == [50257, 6283]


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (80 * GIB, "80.00 GiB"),
        (GIB / 10, "0.10 GiB"),
        (GIB / 16, "64.00 MiB"),
        (5 * 2**20, "5.00 MiB"),
        (2**10, "1.00 KiB"),
        (12, "12 B"),
        (0, "0 B"),
        (-3 * GIB, "-3.00 GiB"),
        (2345.5 * GIB, "2,345.50 GiB"),
        (10 * 2**40, "10.00 TiB"),
        (-1.5 * 2**60, "-1,572,864.00 TiB"),
    ],
)
def test_bytes_are_shown_in_binary_units(num_bytes: float, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (5e-10, "0.5 ns"),
        (2.5e-6, "2.5 µs"),
        (0.0123, "12.3 ms"),
        (1.5, "1.5 s"),
        (119, "119 s"),
        (150, "2.5 min"),
        (9000, "2.5 h"),
        (86400 * 3, "3.0 days"),
        (-0.5, "-500 ms"),
    ],
)
def test_seconds_are_shown_in_the_unit_that_keeps_three_digits(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (512, "512"),
        (9999, "9999"),
        (12_345, "12.3k"),
        (4_194_304, "4.19M"),
        (70.6e9, "70.6B"),
        (15e12, "15T"),
    ],
)
def test_counts_are_shown_with_decimal_suffixes(count: float, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize("count", [999_600, 999.7e6, 999.9e9])
def test_counts_just_below_a_suffix_are_shown_without_an_exponent(count: float) -> None:
    # 999,600 is "1000k" or "1M", never "1e+03k".
    assert "e" not in format_count(count)


@pytest.mark.parametrize("seconds", [0.9996, 9.9996e-4])
def test_seconds_just_below_a_unit_are_shown_without_an_exponent(seconds: float) -> None:
    assert "e" not in format_seconds(seconds).split()[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4096", 4096.0),
        ("350GB", 350e9),
        ("97.5 MB", 97.5e6),
        ("64MiB", 64 * 2**20),
        ("1kB", 1e3),
        ("2Ki", 2048.0),
        ("1.5TB", 1.5e12),
    ],
)
def test_sizes_are_decimal_or_binary_as_written(text: str, expected: float) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "1XB", "-1GB", "1iB", "1e9", "0", "0.1", "1,000"])
def test_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30d", 30 * 86400.0),
        ("12h", 43200.0),
        ("2w", 14 * 86400.0),
        ("90m", 5400.0),
        ("90min", 5400.0),
        ("1d12h", 129600.0),
        (" 1D 12H ", 129600.0),
        ("30 days", 30 * 86400.0),
        ("2 weeks 1 day", 15 * 86400.0),
        ("1 hour 30 minutes", 5400.0),
        ("1.5d", 129600.0),
        ("45s", 45.0),
    ],
)
def test_spans_of_time_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "-3d", "0d", "12h1d", "1d1d", "30 dayz", "1e3s"])
def test_what_is_no_span_of_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a span (of time|above 0)"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "usd"),
    [("2M", 2e6), ("500k", 5e5), ("$1.5M", 1.5e6), ("120000", 1.2e5), ("3 M USD", 3e6)],
)
def test_amounts_of_money_are_read(text: str, usd: float) -> None:
    assert parse_usd(text) == usd


@pytest.mark.parametrize("text", ["", "$", "0", "-1", "1,000", "2M EUR", "1e6"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an amount"):
        parse_usd(text)


def test_k_and_m_of_a_batch_are_those_of_lengths() -> None:
    read = {text: parse_batch_tokens(text) for text in ("4M", "16k", "1.5M", "4000000", "1B")}
    assert read == {
        "4M": 4 * 2**20, "16k": 2**14, "1.5M": 3 * 2**19, "4000000": 4_000_000, "1B": 10**9
    }  # fmt: skip
    for wrong in ("4Q", "0", "-1M", "1.0000001M"):
        with pytest.raises(ValueError, match=r"count|whole number"):
            parse_batch_tokens(wrong)
