"""The format ``megatron``: Megatron-LM's argument list and launch scripts.

Writes a plan as ``megatron.args``, one option per line, or into a script or args file.
"""

import shlex

from planner.cost.context import Context
from planner.documents.file import REMOVED
from planner.formats.decision import explained, lines_of, reasons, refuse
from planner.formats.format import Emitted, Format, OutputFile, SourceText
from planner.formats.megatron import rules_layout, rules_states
from planner.formats.megatron.decisions import FILE, OWNED, TABLE, edits, problems
from planner.formats.megatron.decisions_layout import SCHEDULE
from planner.formats.megatron.options import MICRO, all_words, words_of
from planner.formats.megatron.read import FORMAT as NAME
from planner.formats.megatron.read import options_in, read, recognise
from planner.formats.megatron.runtime import environment
from planner.formats.shell.edit import edited
from planner.spec.strategy import Strategy
from planner.units import ceil_div

TITLE = "Megatron-LM"
VARIABLES = {
    "TRAIN_SCRIPT": "Megatron-LM's training script, such as pretrain_gpt.py",
    "DATA_PATH": "prefix of the indexed data set",
    "TOKENIZER_MODEL": "Hugging Face tokenizer: a folder or a name",
    "LEARNING_RATE": "peak learning rate",
}


def emit(context: Context, strategy: Strategy) -> Emitted:
    """The args file of a plan; raises ExpressError with every reason."""
    refuse(TITLE, reasons(FILE, context, strategy))
    lines = lines_of(FILE, context, strategy)
    text = "".join(f"{shlex.join(words_of(line.key, line.value))}\n" for line in lines)
    variables, tokens = dict(VARIABLES), context.job.total_tokens
    if tokens:
        iterations = str(ceil_div(tokens, context.job.tokens_per_iteration))
    else:
        iterations, variables["TRAIN_ITERS"] = "${TRAIN_ITERS}", "iterations to train"
    own = (
        f"--train-iters {iterations} --lr ${{LEARNING_RATE}} --data-path ${{DATA_PATH}} "
        "--tokenizer-type HuggingFaceTokenizer --tokenizer-model ${TOKENIZER_MODEL}"
    ).split()
    if context.model.position == "rope":
        # The model's, and none of its costs: Megatron would take 10000 without a word.
        own += ["--rotary-base", "${ROTARY_BASE}"]
        of_rotary = "base of rotary positions: 500000 for Llama 3, 10000 where none is named"
        variables["ROTARY_BASE"] = of_rotary
    # What of the model only the user knows, and the options that say it.
    model, layers = context.model, "layers that predict further tokens, which the plan leaves out"
    open_options = {
        "--norm-epsilon --init-method-std": ("epsilon of norms, initial weights", True),
        "--use-rope-scaling --rotary-percent": (
            "scaling of rotary positions, such as Llama 3.1's",
            model.position == "rope",
        ),
        "--moe-router-load-balancing-type --moe-aux-loss-coeff --moe-router-bias-update-rate": (
            "how experts are balanced",
            model.moe,
        ),
        "--mtp-loss-scaling-factor": (
            "weight of the loss of further tokens",
            context.job.mtp_layers,
        ),
        "--mtp-num-layers": (
            f"{layers}: memory and time grow by them",
            model.num_mtp_layers and not context.job.mtp_layers,
        ),
    }
    left_open = {}
    for options, (what, is_open) in open_options.items():
        if is_open:
            left_open[what] = options
    return Emitted(
        files=(OutputFile(name="megatron.args", text=text),),
        command=("${TRAIN_SCRIPT}", *all_words(lines), *own),
        environment=environment(context, strategy),
        variables=variables,
        decided=explained(lines, lambda value: " ".join(words_of("", value)[1:]) or "on"),
        left_open=left_open,
    )


def write_into(source: SourceText, context: Context, strategy: Strategy) -> str:
    """A script or args file with the decisions that change; raises ExpressError, InputError."""
    refuse(TITLE, reasons(TABLE, context, strategy))
    settings = read(source).settings
    found = edits(TABLE, settings, lines_of(TABLE, context, strategy))
    if MICRO not in settings:
        found[MICRO] = strategy.micro_batch  # Megatron has no default for it
    wanted = {key: [] if value is REMOVED else words_of(key, value) for key, value in found.items()}
    return edited(source, options_in, wanted, strategy.num_gpus, OWNED)


RULES = (*rules_layout.rule, *rules_states.rule)


FORMAT = Format(
    name=NAME,
    title=TITLE,
    framework="megatron",
    emit=emit,
    recognise=recognise,
    read=read,
    rules=RULES,
    write_into=write_into,
    problems=problems,
    support={"megatron": {"schedules": (SCHEDULE,)}},
)
