"""GradientExchange: how data-parallel replicas keep in step where not by plain all-reduces.

All of these change what is trained, so none is searched unless a user names it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Travels = Literal["gradients", "momenta", "weights"]


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """The number that a way of exchange takes, and the values it can have."""

    name: str
    usual: float
    least: float
    most: float
    is_whole: bool = False

    @property
    def allowed(self) -> str:
        """The values in words."""
        kind = "whole numbers" if self.is_whole else "numbers"
        return f"{kind} from {self.least:g} to {self.most:g}"


@dataclass(frozen=True, kw_only=True)
class Method:
    """One way of exchange: what travels, what it takes, and how it changes training."""

    title: str
    travels: Travels
    changes: str
    """What of training is another than with plain all-reduces."""
    source: str
    parameter: Parameter | None = None


_WARM_UP = Parameter(name="warmup", usual=0.15, least=0.0, most=1.0)
"""BERT-Large: 23,000 of 152,000 steps (arXiv 2102.02888, section 7.1; recalled)."""
_NARROW = "gradients are added up in {} bits"
_FEEDBACK = "what is left out of a gradient is added to the next one"
METHODS: Mapping[str, Method] = {
    "fp16": Method(
        title="gradients in fp16",
        travels="gradients",
        changes=_NARROW.format(16) + ", and overflow beyond 65,504",
        source="fp16_compress_hook: torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py",
    ),
    "bf16": Method(
        title="gradients in bf16",
        travels="gradients",
        changes=_NARROW.format(16) + " with 8 of mantissa",
        source="bf16_compress_hook: torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py",
    ),
    "int8": Method(
        title="gradients in 8 bits",
        travels="gradients",
        changes="gradients are rounded to 256 steps of a tensor's range",
        source="quantization_pertensor_hook: torch/distributed/algorithms/ddp_comm_hooks/"
        "quantization_hooks.py",
    ),
    "topk": Method(
        title="the largest gradients",
        travels="gradients",
        changes=f"only the largest gradients of a rank are sent; {_FEEDBACK}",
        source="arXiv 1712.01887, section 3",
        parameter=Parameter(name="density", usual=0.001, least=1e-6, most=1.0),
    ),
    "powersgd": Method(
        title="PowerSGD",
        travels="gradients",
        changes=f"a matrix's gradient is replaced by one of low rank; {_FEEDBACK}",
        source="arXiv 1905.13727, algorithm 1; torch/distributed/algorithms/ddp_comm_hooks/"
        "powerSGD_hook.py",
        parameter=Parameter(name="rank", usual=4, least=1, most=1024, is_whole=True),
    ),
    "onebit-adam": Method(
        title="1-bit Adam",
        travels="momenta",
        changes="behind the warm-up the variance is frozen and only signs of momenta travel; "
        f"{_FEEDBACK}",
        source="arXiv 2102.02888, section 4",
        parameter=_WARM_UP,
    ),
    "onebit-lamb": Method(
        title="1-bit LAMB",
        travels="momenta",
        changes="as 1-bit Adam, with layerwise rates scaled by those of the warm-up",
        source="arXiv 2104.06069, section 4",
        parameter=_WARM_UP,
    ),
    "local": Method(
        title="local SGD",
        travels="weights",
        changes="every replica steps alone, and weights are averaged now and then",
        source="arXiv 1805.09767, algorithm 1",
        parameter=Parameter(name="every", usual=8, least=1, most=100_000, is_whole=True),
    ),
    "diloco": Method(
        title="DiLoCo",
        travels="weights",
        changes="every worker steps alone; an outer optimizer with Nesterov momentum steps on the "
        "mean change of weights",
        source="arXiv 2311.08105, algorithm 1",
        parameter=Parameter(name="every", usual=500, least=1, most=100_000, is_whole=True),
    ),
    "async-server": Method(
        title="asynchronous parameter server",
        travels="gradients",
        changes="a worker's gradient meets weights that others have changed since it read them",
        source="Li et al., OSDI 2014, section 3; Dean et al., NIPS 2012, section 4.1 (recalled)",
    ),
}
"""By the names of ``--allow``."""
PLAIN_NAME = "plain"
PERIODIC = ("local", "diloco")
"""Exchanges of weights every so many steps: between replicas, whatever is sharded inside one."""
ONE_BIT = ("onebit-adam", "onebit-lamb")


@dataclass(frozen=True, kw_only=True)
class GradientExchange:
    """A way of exchange with its number."""

    name: str = PLAIN_NAME
    value: float = 0.0
    """Of the method's parameter; 0 where it takes none."""

    @property
    def is_plain(self) -> bool:
        """Gradients are added up as they are."""
        return self.name == PLAIN_NAME

    @property
    def method(self) -> Method:
        """What is known of it; of a plain one nothing is."""
        return METHODS[self.name]

    @property
    def text(self) -> str:
        """As users write it: ``powersgd:rank=4``."""
        parameter = None if self.is_plain else self.method.parameter
        return self.name if parameter is None else f"{self.name}:{parameter.name}={self.value:.10g}"

    @property
    def changes(self) -> str:
        """What of training is another than with plain all-reduces."""
        return self.method.changes

    @property
    def inputs(self) -> dict[str, str]:
        """The same under the key of files; none where gradients are added up as they are."""
        return {} if self.is_plain else {"gradient_exchange": self.text}


PLAIN = GradientExchange()


def is_exchange(text: str) -> bool:
    """Whether a word names a way of exchange, whatever follows it."""
    return text.partition(":")[0].strip() in METHODS


def read_exchange(text: str) -> GradientExchange:
    """A way of exchange from ``powersgd`` or ``powersgd:rank=4``; raises ValueError."""
    name, colon, rest = (part.strip() for part in text.strip().lower().partition(":"))
    if name == PLAIN_NAME and not colon:
        return PLAIN
    if name not in METHODS:
        known = ", ".join((PLAIN_NAME, *METHODS))
        raise ValueError(f"unknown gradient exchange {name[:40]!r}; allowed are {known}")
    parameter = METHODS[name].parameter
    if parameter is None:
        if colon:
            raise ValueError(f"{name} takes no number; given {rest!r}, allowed is {name} alone")
        return GradientExchange(name=name)
    value = _number(name, parameter, rest) if colon else parameter.usual
    return GradientExchange(name=name, value=value)


def _number(name: str, parameter: Parameter, text: str) -> float:
    key, equals, number = (part.strip() for part in text.partition("="))
    allowed = f"allowed is {name}:{parameter.name}=N, {parameter.allowed}"
    try:
        value = float(number)
    except ValueError:
        value = float("nan")
    is_number = parameter.least <= value <= parameter.most
    if key != parameter.name or not equals or not is_number:
        raise ValueError(f"{name} takes {parameter.name}; given {text!r}, {allowed}")
    if parameter.is_whole and value != int(value):
        raise ValueError(f"{name} takes a whole {parameter.name}; given {number}, {allowed}")
    return value
