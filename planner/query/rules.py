"""The rules of a check: what each says, how severe it is, where it comes from."""

from dataclasses import dataclass

from planner.formats import registry as formats
from planner.formats.format import Severity

LEGALITY = "legality"


@dataclass(frozen=True)
class RuleInfo:
    """A rule as reports describe it."""

    name: str
    description: str
    severity: Severity = "error"
    source: str = ""  # file of the framework that enforces it, where it is one of a framework


# Rules that belong to no format: what must hold.
BY_SEVERITY: dict[Severity, dict[str, str]] = {
    "error": {
        "file.unreadable": "The file is text of a known format.",
        "plan.valid": "A plan file keeps to its schema.",
        "job.value": "Degrees and sizes are whole numbers in their range.",
        "job.model": "The file's model is the one it is checked for.",
        "job.gpus": "The file's GPUs are those it is checked for.",
        "job.seq_len": "The sequence length is that of the job.",
        "job.documents": "Documents are batched as the file batches them.",
        "job.global_batch": "The global batch is that of the job.",
        "job.precision": "The accelerator computes in the precision.",
        "job.optimizer": "The framework offers the optimizer.",
        "gpus.divide": "tp, pp and cp divide the GPUs; dp is the rest.",
        "batch.arithmetic": "Global batch = dp x micro-batch x micro-batches, in whole numbers.",
        "legality.stages": "Stages hold the model's layers, and recompute no more than they hold.",
        "memory.fits": "Every stage fits into the memory it has.",
    },
    "warning": {
        "job.zero_stage": "The file itself says how states are split.",
        "job.left_open": "The file itself says how the job is parallelized.",
        "memory.tight": "More memory is left than estimates were off on published runs.",
        "network.tp_in_domain": "Tensor parallelism stays inside the scale-up domain.",
        "network.whole_nodes": "Beyond one node only whole nodes are used.",
    },
    "note": {
        "job.unknown": "A model and a cluster are given, or the file states its model.",
        "job.unpriced": "The job trains all parameters of the model.",
        "network.cp_in_domain": "Context parallelism stays inside the scale-up domain.",
        "network.ep_in_domain": "Expert parallelism stays inside the scale-up domain.",
        "advice.better_plan": "No plan for the same batch and GPUs is clearly faster.",
    },
}
OWN = {
    name: RuleInfo(name, description, severity)
    for severity, rules in BY_SEVERITY.items()
    for name, description in rules.items()
}
# Of keys and values as a format reads them.
READING = {
    "unknown_key": "Every key is one that the framework knows.",
    "bad_value": "Every value is of the kind and in the range of its key.",
    "duplicate_key": "No key is given twice.",
}


def describe(name: str) -> RuleInfo:
    """Return what reports state about a rule; for an unknown one, the words of its name."""
    if name in OWN:
        return OWN[name]
    family, _, short = name.partition(".")
    words = (short or name).replace("_", " ").strip()
    words = words[:1].upper() + words[1:]
    if family == LEGALITY:
        # The rules of the search come with all that they ask of costs: only reports need them.
        from planner.search.space.legality import RULES

        messages = {rule.name: " ".join(rule.message.split()) for rule in RULES}
        return RuleInfo(name, messages.get(short, words))
    if family in formats.format_names():
        for rule in formats.load_format(family).rules:
            if rule.name == short:
                return RuleInfo(name, words, rule.severity, rule.source)
    return RuleInfo(name, READING.get(short, words))
