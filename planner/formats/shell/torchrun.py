"""Options between ``torchrun`` and its script: one that it does not know ends the job at once.

Source: torch/distributed/run.py. Its parser takes shortened names, and ``_`` for ``-``.
"""

from collections.abc import Iterator, Sequence

from planner.formats.format import Finding
from planner.formats.shell.word import Word
from planner.formats.shell.words import Lines
from planner.spelling import did_you_mean

PROGRAMS = ("torchrun", "torch.distributed.run")
_SWITCHES = "--help --standalone --module --no-python --run-path --virtual-local-rank -h -m"
_WITH_VALUE = (
    "--nnodes --nproc-per-node --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --max-restarts "
    "--monitor-interval --start-method --event-log-handler --role --log-dir --redirects --tee "
    "--local-ranks-filter --duplicate-stdout-filters --duplicate-stderr-filters --node-rank "
    "--master-addr --master-port --local-addr --logs-specs --numa-binding --signals-to-handle "
    "--shutdown-timeout -r -t"
)
SWITCHES = frozenset(_SWITCHES.split())
"""Options without a value."""
WITH_VALUE = frozenset(_WITH_VALUE.split())


def torchrun_findings(
    words: Sequence[Word], lines: Lines, path: str, format_name: str
) -> Iterator[Finding]:
    """The first option that torchrun does not know; what a variable hides is not looked into."""
    names = [word.text.rpartition("/")[2] for word in words]
    at = next((at + 1 for at, name in enumerate(names) if name in PROGRAMS), len(words))
    while at < len(words) and words[at].text.startswith("-") and not words[at].unknown:
        spelled, sign, _ = words[at].text.partition("=")
        found = _option(spelled)
        if found is None:
            hint = did_you_mean(spelled, SWITCHES | WITH_VALUE)
            message = f"torchrun has no such option; {hint}".removesuffix("; ")
            yield Finding(
                rule=f"{format_name}.unknown_key",
                severity="error",
                message=message,
                path=path,
                key=spelled[:120],
                line=lines.at(words[at].start),
            )
            return
        is_joined = bool(sign) or (len(found) == 2 and spelled != found)
        at += 1 if is_joined or found in SWITCHES else 2


def _option(spelled: str) -> str | None:
    """The option of a name in full or shortened; None where there is none."""
    if not spelled.startswith("--"):
        return next((name for name in ("-h", "-m", "-r", "-t") if spelled.startswith(name)), None)
    name = spelled.replace("_", "-")
    known = sorted(each for each in SWITCHES | WITH_VALUE if each.startswith(name))
    return name if name in known else next(iter(known), None)
