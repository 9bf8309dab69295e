"""The rules of a check: what each says, how severe it is, where it comes from."""

from dataclasses import dataclass

from planner.formats import registry as formats
from planner.formats.finding import Severity
from planner.search.space.rules import RULES

LEGALITY = "legality"


@dataclass(frozen=True, kw_only=True)
class RuleInfo:
    """A rule as reports describe it."""

    name: str
    description: str
    severity: Severity = "error"
    source: str = ""
    """File of the framework that enforces it, where it is one of a framework."""


_OWN: tuple[RuleInfo, ...] = (
    RuleInfo(name="file.unreadable", description="The file is text of a known format."),
    RuleInfo(name="plan.valid", description="A plan file keeps to its schema."),
    RuleInfo(
        name="job.unknown",
        description="A model and a cluster are given, or the file states its model.",
        severity="note",
    ),
    RuleInfo(name="job.value", description="Degrees and sizes are whole numbers in their range."),
    RuleInfo(name="job.model", description="The file's model is the one it is checked for."),
    RuleInfo(name="job.gpus", description="The file's GPUs are those it is checked for."),
    RuleInfo(name="job.seq_len", description="The sequence length is that of the job."),
    RuleInfo(name="job.documents", description="Documents are batched as the file batches them."),
    RuleInfo(name="job.global_batch", description="The global batch is that of the job."),
    RuleInfo(name="job.precision", description="The accelerator computes in the precision."),
    RuleInfo(name="job.optimizer", description="The framework offers the optimizer."),
    RuleInfo(
        name="job.zero_stage",
        description="The file itself says how states are split.",
        severity="warning",
    ),
    RuleInfo(
        name="job.left_open",
        description="The file itself says how the job is cut up.",
        severity="warning",
    ),
    RuleInfo(
        name="job.unpriced",
        description="The job trains all parameters of the model.",
        severity="note",
    ),
    RuleInfo(name="gpus.divide", description="tp, pp and cp divide the GPUs; dp is the rest."),
    RuleInfo(
        name="batch.arithmetic",
        description="Global batch = dp x micro-batch x micro-batches, in whole numbers.",
    ),
    RuleInfo(
        name="legality.stages",
        description="Stages hold the model's layers, and recompute no more than they hold.",
    ),
    RuleInfo(name="memory.fits", description="Every stage fits into the memory it has."),
    RuleInfo(
        name="memory.tight",
        description="More memory is left than estimates were off on published runs.",
        severity="warning",
    ),
    RuleInfo(
        name="network.tp_in_domain",
        description="Tensor parallelism stays inside the scale-up domain.",
        severity="warning",
    ),
    RuleInfo(
        name="network.cp_in_domain",
        description="Context parallelism stays inside the scale-up domain.",
        severity="note",
    ),
    RuleInfo(
        name="network.ep_in_domain",
        description="Expert parallelism stays inside the scale-up domain.",
        severity="note",
    ),
    RuleInfo(
        name="network.whole_nodes",
        description="Beyond one node only whole nodes are used.",
        severity="warning",
    ),
    RuleInfo(
        name="advice.better_plan",
        description="No plan for the same batch and GPUs is clearly faster.",
        severity="note",
    ),
)
OWN = {rule.name: rule for rule in _OWN}
"""Rules that belong to no format."""
_READING = {
    "unknown_key": "Every key is one that the framework knows.",
    "bad_value": "Every value is of the kind and in the range of its key.",
    "duplicate_key": "No key is given twice.",
}


def describe(name: str) -> RuleInfo:
    """What reports say about a rule; of an unknown one, its own words."""
    if name in OWN:
        return OWN[name]
    family, _, short = name.partition(".")
    if family == LEGALITY:
        return _of_legality(name, short)
    found = _of_format(family, short)
    if found is not None:
        return found
    return RuleInfo(name=name, description=_READING.get(short, _words(short or name)))


def _of_legality(name: str, short: str) -> RuleInfo:
    for rule in RULES:
        if rule.name == short:
            return RuleInfo(name=name, description=" ".join(rule.message.split()))
    return RuleInfo(name=name, description=_words(short))


def _of_format(family: str, short: str) -> RuleInfo | None:
    if family not in formats.format_names():
        return None
    for rule in formats.load_format(family).rules:
        if rule.name == short:
            return RuleInfo(
                name=f"{family}.{short}",
                description=_words(short),
                severity=rule.severity,
                source=rule.source,
            )
    return None


def _words(name: str) -> str:
    text = name.replace("_", " ").strip()
    return text[:1].upper() + text[1:]
