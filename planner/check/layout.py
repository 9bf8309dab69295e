"""A layout under check: the question it answers, and where the file states each decision."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner.check.rules import OWN
from planner.cost.context import Context
from planner.cost.module_sets import module_sets
from planner.formats.format import Finding, Severity
from planner.spec.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a file states something: the key as it is spelled there, and its line."""

    key: str = ""
    line: int = 0


NOWHERE = Place()


@dataclass(frozen=True, kw_only=True)
class Places:
    """The places of a file's decisions."""

    path: str
    of: Mapping[str, Place]
    """By the names of DECISIONS."""

    def finding(
        self, rule: str, message: str, *decisions: str, severity: Severity | None = None
    ) -> Finding:
        """A finding at the first of the decisions that the file states."""
        known = [self.of[name] for name in decisions if name in self.of]
        place = next((one for one in known if one.line), next(iter(known), NOWHERE))
        return Finding(
            rule=rule,
            severity=severity or (OWN[rule].severity if rule in OWN else "error"),
            message=message,
            path=self.path,
            key=place.key,
            line=place.line,
        )


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A complete strategy with its context, legal or not, and its places in the file."""

    context: Context
    strategy: Strategy
    places: Places
    assumes: tuple[str, ...] = ()
    """What decides memory and nobody has said: of ``recompute``, ``optimizer``, ``seq_len``."""

    @property
    def num_gpus(self) -> int:
        """GPUs of the strategy."""
        return self.strategy.num_gpus

    @property
    def cautious(self) -> Context:
        """The context of plans to propose: the framework's uncertainty stays free."""
        margin = self.context.traits.memory_uncertainty_fraction
        return replace(self.context, margin_fraction=margin, module_sets=module_sets(self.context))
