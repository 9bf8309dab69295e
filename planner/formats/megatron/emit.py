"""Writes a plan as ``megatron.args``: one option per line, readable by xargs."""

import shlex
from collections.abc import Iterable

from planner.cost.context import Context
from planner.formats.format import Decided, Emitted, OutputFile
from planner.formats.megatron.choice import Choice
from planner.formats.megatron.reasons import reasons, refuse
from planner.formats.megatron.runtime import environment, runtime_choices
from planner.formats.megatron.shape import shape_choices
from planner.formats.megatron.table import decision_choices
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
    "learning-rate schedule, checkpoints": "--lr-decay-style --lr-warmup-iters --save --load",
}
LEFT_OPEN_ROTARY = {
    "scaling of rotary positions, such as Llama 3.1's": "--use-rope-scaling --rotary-percent"
}
LEFT_OPEN_MIXTURE = {
    "how the router scores and balances": (
        "--moe-router-score-function --moe-router-pre-softmax --moe-router-load-balancing-type "
        "--moe-aux-loss-coeff"
    )
}


def choices_of(context: Context, strategy: Strategy) -> list[Choice]:
    """Every option of a plan in order; raises ExpressError with every reason."""
    refuse(TITLE, reasons(context, strategy))
    return [
        *shape_choices(context),
        *decision_choices(context, strategy),
        *runtime_choices(context, strategy),
    ]


def words_of(choices: Iterable[Choice]) -> list[str]:
    """Options and values as the words of a command."""
    return [word for choice in choices for word in (choice.option, *choice.words)]


def line_of(choice: Choice) -> str:
    """An option and its values, quoted for a shell and for xargs."""
    return shlex.join((choice.option, *choice.words))


def decided_by(choices: Iterable[Choice]) -> tuple[Decided, ...]:
    """The options that carry a decision, with their reasons."""
    return tuple(
        Decided(key=choice.option, value=" ".join(choice.words) or "on", why=choice.why)
        for choice in choices
        if choice.why
    )


def emit(context: Context, strategy: Strategy) -> Emitted:
    """The args file of a plan; raises ExpressError with every reason."""
    choices = choices_of(context, strategy)
    text = "".join(f"{line_of(choice)}\n" for choice in choices)
    tokens = context.job.total_tokens
    iterations = str(ceil_div(tokens, context.job.tokens_per_iteration)) if tokens else ""
    own = ["--train-iters", iterations or "${TRAIN_ITERS}", "--lr", "${LEARNING_RATE}"]
    own += ["--data-path", "${DATA_PATH}", "--tokenizer-type", "HuggingFaceTokenizer"]
    own += ["--tokenizer-model", "${TOKENIZER_MODEL}"]
    is_rotary = context.model.position == "rope"
    own += ["--rotary-base", "${ROTARY_BASE}"] if is_rotary else []
    return Emitted(
        files=(OutputFile(name=FILE_NAME, text=text),),
        command=("${TRAIN_SCRIPT}", *words_of(choices), *own),
        environment=environment(context, strategy),
        variables=VARIABLES | ({} if iterations else ITERATIONS) | (ROTARY if is_rotary else {}),
        decided=decided_by(choices),
        left_open={
            **LEFT_OPEN,
            **(LEFT_OPEN_ROTARY if is_rotary else {}),
            **(LEFT_OPEN_MIXTURE if context.model.moe else {}),
        },
    )
