"""Writes a plan as ``megatron.args``, one option per line, or into a script or args file."""

import shlex
from collections.abc import Mapping

from planner.cost.context import Context
from planner.documents.file import REMOVED
from planner.formats.decision import lines_of, refuse
from planner.formats.format import Decided, Emitted, OutputFile, SourceText
from planner.formats.megatron.decisions import FILE, TABLE, edits, reasons
from planner.formats.megatron.decisions_layout import MICRO
from planner.formats.megatron.read import options_in, read
from planner.formats.megatron.rows import all_words, words_of
from planner.formats.megatron.runtime import environment
from planner.formats.shell.edit import edited
from planner.spec.strategy import Strategy
from planner.units import ceil_div

TITLE = "Megatron-LM"
FILE_NAME = "megatron.args"
VARIABLES = {
    "TRAIN_SCRIPT": "Megatron-LM's training script, such as pretrain_gpt.py",
    "DATA_PATH": "prefix of the indexed data set",
    "TOKENIZER_MODEL": "Hugging Face tokenizer: a folder or a name",
    "LEARNING_RATE": "peak learning rate",
}
ITERATIONS = {"TRAIN_ITERS": "iterations to train"}
ROTARY = {"ROTARY_BASE": "base of rotary positions: 500000 for Llama 3, 10000 where none is named"}
"""The model's, and none of its costs: Megatron would take 10000 without a word."""


LEFT_OPEN = {
    "epsilon of norms, initial weights": "--norm-epsilon --init-method-std",
}
LEFT_OPEN_ROTARY = {
    "scaling of rotary positions, such as Llama 3.1's": "--use-rope-scaling --rotary-percent"
}
LEFT_OPEN_MIXTURE = {
    "how experts are balanced": (
        "--moe-router-load-balancing-type --moe-aux-loss-coeff --moe-router-bias-update-rate"
    )
}


LEFT_OPEN_FURTHER = {
    "layers that predict further tokens, which the plan leaves out: memory and time grow by them": (
        "--mtp-num-layers"
    )
}
LEFT_OPEN_WEIGHT = {"weight of the loss of further tokens": "--mtp-loss-scaling-factor"}


def emit(context: Context, strategy: Strategy) -> Emitted:
    """The args file of a plan; raises ExpressError with every reason."""
    refuse(TITLE, reasons(FILE, context, strategy))
    lines = lines_of(FILE, context, strategy)
    text = "".join(f"{shlex.join(words_of(line.key, line.value))}\n" for line in lines)
    tokens = context.job.total_tokens
    iterations = str(ceil_div(tokens, context.job.tokens_per_iteration)) if tokens else ""
    own = ["--train-iters", iterations or "${TRAIN_ITERS}", "--lr", "${LEARNING_RATE}"]
    own += ["--data-path", "${DATA_PATH}", "--tokenizer-type", "HuggingFaceTokenizer"]
    own += ["--tokenizer-model", "${TOKENIZER_MODEL}"]
    is_rotary = context.model.position == "rope"
    own += ["--rotary-base", "${ROTARY_BASE}"] if is_rotary else []
    return Emitted(
        files=(OutputFile(name=FILE_NAME, text=text),),
        command=("${TRAIN_SCRIPT}", *all_words(lines), *own),
        environment=environment(context, strategy),
        variables=VARIABLES | ({} if iterations else ITERATIONS) | (ROTARY if is_rotary else {}),
        decided=tuple(
            Decided(
                key=each.key,
                value=" ".join(words_of(each.key, each.value)[1:]) or "on",
                why=each.why,
            )
            for each in lines
            if each.why
        ),
        left_open={
            **LEFT_OPEN,
            **(LEFT_OPEN_ROTARY if is_rotary else {}),
            **(LEFT_OPEN_MIXTURE if context.model.moe else {}),
            **_mtp_left_open(context),
        },
    )


def _mtp_left_open(context: Context) -> Mapping[str, str]:
    if context.job.mtp_layers:
        return LEFT_OPEN_WEIGHT
    return LEFT_OPEN_FURTHER if context.model.num_mtp_layers else {}


def write_into(source: SourceText, context: Context, strategy: Strategy) -> str:
    """A script or args file with the decisions that change in it, everything else as it was.

    Raises ExpressError where the strategy cannot be expressed or where a decision is computed in
    a way that cannot be edited, InputError where the file cannot be read.
    """
    refuse(TITLE, reasons(TABLE, context, strategy))
    settings = read(source).settings
    found = edits(TABLE, settings, lines_of(TABLE, context, strategy))
    if MICRO not in settings:
        found[MICRO] = strategy.micro_batch  # Megatron has no default for it
    wanted = {key: [] if value is REMOVED else words_of(key, value) for key, value in found.items()}
    return edited(source, options_in, wanted, strategy.num_gpus)
