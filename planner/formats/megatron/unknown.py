"""Options that Megatron-LM does not know: misspelt, of another release, or the script's own.

Sources: megatron/training/arguments.py of earlier releases; pretrain_gpt.py, which takes the
options of megatron/post_training/arguments.py where ModelOpt is installed.
"""

from collections.abc import Mapping, Sequence

from planner.formats.finding import Severity
from planner.formats.megatron.options import is_own_script, load_options, unknown_option
from planner.formats.shell.edit import Entry
from planner.formats.shell.reading import WordsReader
from planner.spelling import alike

OPTIMIZED = ("--export-", "--finetune-hf-dataset", "--finetune-data-split")
"""How options of ModelOpt begin."""
FEW = 5
"""More options than these are one finding: the file is not for this release."""
MAX_COMPARED = 100
"""Options that are compared with the known ones."""
GONE: Mapping[str, str] = {
    "--DDP-impl": "",
    "--activations-checkpoint-method": "--recompute-method",
    "--checkpoint-num-layers": "--recompute-num-layers",
    "--data-impl": "",
    "--distribute-checkpointed-activations": "--distribute-saved-activations",
    "--fp8-e4m3": "--fp8-format e4m3",
    "--fp8-hybrid": "--fp8-format hybrid",
    "--layernorm-epsilon": "--norm-epsilon",
    "--log-batch-size-to-tensorboard": "",
    "--moe-extended-tp": "--expert-tensor-parallel-size",
    "--no-async-tensor-model-parallel-allreduce": "",
    "--no-scatter-gather-tensors-in-pipeline": "",
    "--override-lr-scheduler": "--override-opt_param-scheduler",
    "--use-checkpoint-lr-scheduler": "--use-checkpoint-opt_param-scheduler",
    "--use-custom-fsdp": "--use-megatron-fsdp",
}
"""Options of earlier releases and what says the same today; empty where nothing does."""


def report_unknown(reader: WordsReader, entries: Sequence[Entry], script: str) -> None:
    """Options that are not known, each once; ``script`` may add some that are not Megatron's."""
    name, is_own = script.rpartition("/")[2][-60:], is_own_script(script)
    severity: Severity = "error" if is_own else "warning"
    adds = "" if is_own else f"; {name} may add it"
    others: list[Entry] = []
    by_name: dict[str, Entry] = {}
    for entry in entries:
        by_name.setdefault(entry.name, entry)
    for at, entry in enumerate(by_name.values()):
        if entry.name in GONE:
            reader.report(entry, "unknown_key", _successor(entry.name))
        elif at < MAX_COMPARED and alike(entry.name, load_options(), 0.9):
            reader.report(entry, "unknown_key", unknown_option(entry.name) + adds, severity)
        elif not is_own or not entry.name.startswith(OPTIMIZED):
            others.append(entry)
    if len(others) > (FEW if is_own else 1):
        shown = ", ".join(entry.name[:60] for entry in others[:FEW])
        message = (
            f"{len(others)} options that Megatron-LM 0.19.2 does not have: {shown}"
            f"{', ...' if len(others) > FEW else ''}; "
            + ("the file is for a fork or another release" if is_own else f"{name} may add them")
        )
        reader.report(others[0], "unknown_key", message, severity)
        return
    for entry in others:
        reader.report(entry, "unknown_key", unknown_option(entry.name) + adds, severity)


def _successor(name: str) -> str:
    instead = GONE[name]
    return f"is gone from Megatron-LM; {f'use {instead}' if instead else 'take it out'}"
