"""Rules of Megatron-LM for a format that says its options by other keys."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from planner.formats.format import FormatRule, Value, Violation, World

Settings = Mapping[str, Value]
_OPTION = re.compile(r"--[a-z0-9-]+")


def translated(
    rules: Iterable[FormatRule],
    names: Sequence[str],
    as_options: Callable[[Settings], Settings],
    spelled: Callable[[str], str],
    given_elsewhere: str = "",
) -> tuple[FormatRule, ...]:
    """Those of the names: asked of the options, told in the format's keys.

    With a setting of the name ``given_elsewhere``, what a rule asks for may stand there.
    """

    def of(rule: FormatRule) -> FormatRule:
        def checked(settings: Settings, world: World) -> Iterable[Violation]:
            options = as_options(settings)
            for broken in rule.check(options, world):
                asked = set(_OPTION.findall(broken.message))
                if given_elsewhere in settings and asked - options.keys():
                    continue
                yield Violation(key=spelled(broken.key), message=spelled(broken.message))

        return replace(rule, check=checked)

    return tuple(of(rule) for rule in rules if rule.name in names)
