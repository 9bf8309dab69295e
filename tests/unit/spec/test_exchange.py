"""Ways to keep replicas in step, as users name them."""

import pytest

from planner.spec.exchange import METHODS, PLAIN, GradientExchange, is_exchange, read_exchange


@pytest.mark.parametrize("name", METHODS)
def test_every_way_is_read_back_from_its_own_words(name: str) -> None:
    exchange = read_exchange(name)
    assert read_exchange(exchange.text) == exchange
    assert is_exchange(exchange.text)
    assert exchange.inputs == {"gradient_exchange": exchange.text}


def test_a_number_stands_behind_its_name() -> None:
    assert read_exchange("PowerSGD:rank=8") == GradientExchange(name="powersgd", value=8.0)
    assert read_exchange("diloco") == GradientExchange(name="diloco", value=500.0)
    assert read_exchange("topk:density=0.01").text == "topk:density=0.01"
    assert read_exchange("plain") is PLAIN


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("powersg", "allowed are plain, fp16"),
        ("powersgd:rank=0", "whole numbers from 1 to 1024"),
        ("powersgd:rank=2.5", "a whole rank"),
        ("powersgd:density=2", "powersgd takes rank"),
        ("topk:density=nan", "numbers from 1e-06 to 1"),
        ("fp16:4", "fp16 takes no number"),
        ("local:every=", "local takes every"),
    ],
)
def test_what_is_wrong_with_a_word_is_said_with_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(ValueError, match="allowed") as error:
        read_exchange(text)
    assert said in str(error.value)
