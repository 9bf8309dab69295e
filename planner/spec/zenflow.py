"""ZenFlow: which gradients step weights at once, and how late the host's states step the others.

It changes what is trained, so nothing of it is searched unless a user names it. Source: arXiv
2505.12242; deepspeed/runtime/zenflow, release 0.19.8.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

NAME: Final = "zenflow"
_MOST_STEPS = 100_000
CHANGES: Final = (
    "columns of the largest gradients are stepped in every iteration, the others from gradients "
    "added up over some, with weights that come back as much later"
)


@dataclass(frozen=True, kw_only=True)
class ZenFlow:
    """How an optimizer on the host is stepped, in the names of DeepSpeed's section."""

    is_plain: bool = False
    """Not at all: the host steps all weights in every iteration, and the device waits."""
    topk_ratio: float = 0.1
    """Share of a matrix's columns that the device steps. Usual: ZenFlowConfig."""
    update_interval: int = 4
    """Iterations from one step on the host to the next. Usual: docs/_tutorials/zenflow.md."""
    select_interval: int = 0
    """Iterations from one choice of columns to the next; 0: once an epoch."""
    overlap_step: bool = True
    """The host steps beside the iterations that follow. Usual: docs/_tutorials/zenflow.md."""
    offload: bool = False
    """Moments of the columns chosen stay on the host, and come for every step."""
    pt_reserved_cores_perc: float = 0.5
    """Share of a rank's cores that the host's step leaves to training. Usual: ZenFlowConfig."""

    @property
    def name(self) -> str:
        """As ``--allow`` names it."""
        return NAME

    @property
    def text(self) -> str:
        """As users write it, what is usual left out behind the first two."""
        if self.is_plain:
            return "plain"
        words = [NAME]
        for place, name in enumerate(_USUAL):
            value = getattr(self, name)
            if place < _ALWAYS_SAID or value != _USUAL[name]:
                words.append(f"{name}={_shown(value)}")
        return ":".join(words)

    @property
    def short(self) -> str:
        """For a column: share of the columns and interval."""
        return self.text if self.is_plain else f"{NAME} {self.topk_ratio:g}/{self.update_interval}"

    @property
    def inputs(self) -> dict[str, str]:
        """The same under the key of files; none where it is not used."""
        return {} if self.is_plain else {NAME: self.text}

    @property
    def changes(self) -> str:
        """What of training is another than with a synchronous step."""
        return CHANGES


NO_ZENFLOW = ZenFlow(is_plain=True)
_USUAL: Mapping[str, bool | float] = {
    each.name: each.default  # type: ignore[misc]
    for each in fields(ZenFlow)
    if each.name != "is_plain"
}
_ALWAYS_SAID = 2
_RANGES: Mapping[str, tuple[float, float]] = {
    "update_interval": (1, _MOST_STEPS),
    "select_interval": (0, _MOST_STEPS),
    "pt_reserved_cores_perc": (0.0, 1.0),
}
_SWITCHES = {"true": True, "false": False}


def is_zenflow(text: str) -> bool:
    """Whether a word names ZenFlow, whatever follows it."""
    return text.partition(":")[0].strip().lower() == NAME


def read_zenflow(text: str) -> ZenFlow:
    """ZenFlow from ``zenflow`` or ``zenflow:topk_ratio=0.05:update_interval=4``; or ValueError."""
    name, *pairs = (part.strip() for part in text.strip().lower().split(":"))
    if name != NAME:
        raise ValueError(f"unknown way to step offloaded states {name[:40]!r}; allowed is {NAME}")
    given: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if key not in _USUAL or not equals:
            allowed = ", ".join(_USUAL)
            raise ValueError(f"{NAME} takes KEY=VALUE; given {pair[:40]!r}, keys are {allowed}")
        if key in given:
            raise ValueError(f"{NAME} says {key} twice; given {given[key]} and {value}")
        given[key] = value
    return zenflow_of({key: _value(key, value) for key, value in given.items()})


def zenflow_of(values: Mapping[str, bool | float]) -> ZenFlow:
    """ZenFlow with these values, the others usual; ValueError where DeepSpeed would refuse them."""
    for key, value in values.items():
        _held(key, value)
    found = ZenFlow(**{key: type(_USUAL[key])(value) for key, value in values.items()})  # type: ignore[arg-type]
    if 0 < found.select_interval < found.update_interval:
        raise ValueError(
            f"columns are chosen no more often than the host steps; given select_interval "
            f"{found.select_interval}, allowed is 0 or at least update_interval "
            f"{found.update_interval}"
        )
    return found


def _value(key: str, text: str) -> bool | float:
    """A word as the key's kind of value; ValueError where it is none."""
    if isinstance(_USUAL[key], bool):
        if text not in _SWITCHES:
            raise ValueError(f"{key} must be true or false; given {text[:40]!r}")
        return _SWITCHES[text]
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{key} must be a number; given {text[:40]!r}") from None


def _held(key: str, value: float) -> None:
    """Raise ValueError where a value is not one that DeepSpeed takes."""
    if isinstance(_USUAL[key], bool):
        return
    if key == "topk_ratio":
        if not 0.0 < value < 1.0:
            raise ValueError(f"{key} must be above 0 and below 1; given {value:g}")
        return
    least, most = _RANGES[key]
    if not least <= value <= most:
        raise ValueError(f"{key} must be from {least:g} to {most:g}; given {value:g}")
    if isinstance(_USUAL[key], int) and value != int(value):
        raise ValueError(f"{key} must be a whole number; given {value:g}")


def _shown(value: bool | float) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:.10g}"
