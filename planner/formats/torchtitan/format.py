"""The format ``torchtitan``: command-line words of release 0.3; older TOML files are read."""

import json
import re
import shlex
from collections.abc import Iterator
from importlib import resources
from string import Template

from planner.cost.context import Context
from planner.documents.file import REMOVED
from planner.errors import ExpressError
from planner.formats.decision import KeyValue, changes, key_values, lines_of, reasons, refuse
from planner.formats.format import Emitted, ExplainedKey, Format, OutputFile, SourceText
from planner.formats.settings import decided, which
from planner.formats.shell.edit import edited
from planner.formats.torchtitan import keys, read
from planner.formats.torchtitan.keys import (
    GLOBAL_BATCH,
    LOCAL_BATCH,
    NAME,
    OWN_MODULE,
    POLICY,
    SELECTORS,
)
from planner.formats.torchtitan.mapping import (
    DECIDING,
    REFUSALS,
    TABLE,
    unlike_modules,
    unlike_software,
)
from planner.formats.torchtitan.rules import RULES
from planner.spec.model import ModelSpec
from planner.spec.strategy import Strategy

# Variables of the module that is written, by what of a model they say where it does not.
_ASKED = {
    "rotary_base": ("ROPE_THETA", "base of its rotary positions, rope_theta of its config.json"),
    "rotary_factor": ("ROPE_SCALING_FACTOR", "factor of its rope_scaling of type llama3; 1: none"),
    "norm_eps": ("NORM_EPS", "epsilon of its norms, rms_norm_eps"),
}


def _asked(model: ModelSpec) -> dict[str, tuple[str, str]]:
    base, eps = model.rotary_base, model.norm_eps
    known = {"rotary_base": base, "rotary_factor": base, "norm_eps": eps}
    return {name: each for name, each in _ASKED.items() if not known[name]}


def written_config(context: Context) -> tuple[str, str]:
    """Name and text of a config of the model's sizes, where torchtitan has none."""
    model, moe = context.model, context.model.moe
    words = re.sub(r"\W+", "_", model.name.lower(), flags=re.ASCII).strip("_") or "model"
    name = f"{'m_' * words[0].isdigit()}{words}_{model.num_layers}_layers"
    template = resources.files(__package__).joinpath("planner_config.py.txt")
    absent = dict.fromkeys(("num_experts", "top_k", "expert_ffn_size"), 0)
    literals = {
        **vars(model),
        **(vars(moe) if moe else absent),
        "flavor": name,
        "max_seq_len": max(model.max_seq_len, context.job.seq_len),
        "is_tied": model.tied_embeddings,
        "has_qk_norm": model.qk_norm == "head",
    }
    spelled = {key: ascii(value) for key, value in literals.items()} | {"name": name}
    spelled |= {key: f'float(os.environ["{name}"])' for key, (name, _) in _asked(model).items()}
    return name, Template(template.read_text(encoding="utf-8")).substitute(spelled)


def unlike_configs(context: Context) -> Iterator[str]:
    """Yield why no config can be chosen or written."""
    model, precision, length = context.model, context.job.precision, context.job.seq_len
    named, foreign = _named(context), list(REFUSALS["foreign"](context))
    fits = named is not None and length <= named.max_seq_len
    if fits or (precision == "bf16" and not foreign):
        return
    if precision == "mxfp8":
        yield f"precision {precision}: torchtitan has no such config of {model.name}"
    elif precision != "bf16":
        yield f"precision {precision}: torchtitan trains in bf16, in mxfp8 by its own config"
    if named:
        yield f"seq_len {length}: torchtitan's config {named.name} allows {named.max_seq_len}"
    elif precision == "bf16":
        for part in foreign:
            yield f"model {model.name}: {part}; no config of torchtitan has its shape either"


def _named(context: Context) -> keys.Config | None:
    """The plainest config of the model and precision: the one with the shortest name."""
    model = context.model
    kinds = {
        "deepseek_v3": model.mla and not model.mla.indexer,
        "gpt_oss": model.family == "gpt-oss",
        "": list(REFUSALS["foreign"](context)),
        "qwen3": model.qk_norm == "head",
        "llama3": not model.moe,
    }
    module = next(which(kinds), "")
    # By the names in configs.json: those of the model's parts with a dot.
    parts = {"": model, "moe.": model.moe, "mla.": model.mla}
    shape = {
        f"{part}{key}": value
        for part, values in parts.items()
        if values
        for key, value in vars(values).items()
    }
    names = sorted(keys.modules().get(module, ()), key=lambda name: (len(name), name))
    for config in (keys.config_named(module, name) for name in names):
        if (
            not config.name.startswith("sft_")
            and config.precision == context.job.precision
            and all(shape.get(key) == value for key, value in config.model.items())
        ):
            return config
    return None


def emit(context: Context, strategy: Strategy) -> Emitted:
    """Return a plan as words; raises ExpressError with every reason where it is impossible."""
    refuse(NAME, [*reasons(TABLE, context, strategy), *unlike_configs(context)])
    config, variables, left_open = _named(context), dict[str, str](), dict[str, str]()
    if config is not None and context.job.seq_len <= config.max_seq_len:
        module = next(name for name, own in keys.modules().items() if config.name in own)
        name, written, where = config.name, "", "its own"
        positions = f"rotary positions of {config.rotary}, norms with an epsilon"
        left_open[f"{positions} of {config.norm_eps:g}, as the config has them"] = "--config"
    else:
        module = OWN_MODULE
        variables = dict(_asked(context.model).values())
        variables["LEARNING_RATE"] = "highest learning rate"
        left_open["learning rate"] = f"LEARNING_RATE, which {OWN_MODULE}.py reads"
        name, written = written_config(context)
        where = "written for this plan, found in the working folder"
    head = {
        "module": (module, ""),
        "config": (name, f"config with the model's sizes, {where}"),
    }
    run = {
        "hf_assets_path": "${HF_ASSETS_PATH}",
        "dataloader.dataset": "${DATASET}",
        "training.steps": "${STEPS}",
    }
    lines = [*key_values(head), *lines_of(TABLE, context, strategy)]
    words = [keys.words_of(line.key, line.value) for line in lines]
    arguments = "".join(f"{shlex.join(own)}\n" for own in words)
    own_module = (OutputFile(name=f"{module}.py", text=written),) if written else ()
    return Emitted(
        files=(OutputFile(name="torchtitan.args", text=arguments), *own_module),
        command=("-m", "torchtitan.train"),
        arguments="torchtitan.args",
        run=tuple(word for key, value in run.items() for word in (f"--{key}", value)),
        # As torchtitan's run_train.sh sets it.
        environment={"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
        variables={
            "HF_ASSETS_PATH": (
                "folder with the tokenizer's files, as scripts/download_hf_assets.py of "
                "torchtitan makes it"
            ),
            "DATASET": "a data set that torchtitan knows, such as c4",
            "STEPS": "optimizer steps to run",
            **variables,
        },
        decided=tuple(
            ExplainedKey(key=key, value=" ".join(values) or "set", why=line.why)
            for line, (key, *values) in zip(lines, words, strict=True)
            if line.why
        ),
        left_open=left_open,
    )


def problems(context: Context) -> Iterator[str]:
    """Yield what no words express whatever the layout: profile, optimizer, modules, the model."""
    yield from unlike_software(context)
    yield from unlike_configs(context)
    yield from unlike_modules(context)


def write_into(source: SourceText, context: Context, strategy: Strategy) -> str:
    """The file with the decisions that change; raises ExpressError, InputError."""
    if read.is_old(source.text):
        return _written_into_old(source, context, strategy)
    refuse(NAME, reasons(TABLE, context, strategy))
    read.refuse_processes(source, strategy.num_gpus)
    settings = keys.filled(read.read(source).settings)
    (_, entries), _ = read.entries_in(source)
    lines = {each.key: each for each in lines_of(TABLE, context, strategy)}
    others = [
        KeyValue(key=key, value=each.value, is_assumed=True)
        for key, each in settings.items()
        if key not in DECIDING or key in SELECTORS
    ]
    found = changes(TABLE, settings, [*lines.values(), *others])
    if POLICY in found:
        every = {name for names in keys.policies().values() for name in names}
        found |= dict.fromkeys(every - {*keys.policies()[found[POLICY]]}, REMOVED)
    misplaced = {each.name for each in read.misplaced(entries)}
    found |= {key: line.value for key, line in lines.items() if key in misplaced}
    there = {each.name for each in entries}
    wanted = {
        key: () if found[key] is REMOVED else keys.words_of(key, found[key])
        for key in sorted(found, key=lambda key: key == POLICY)
        if found[key] is not REMOVED or key in there
    }
    deciding = DECIDING | read.SCRIPT_VARIABLES.keys() | {read.PROCESSES}
    return edited(source, read.entries_in, wanted, strategy.num_gpus, deciding, last=POLICY)


def _written_into_old(source: SourceText, context: Context, strategy: Strategy) -> str:
    """A TOML file of a release before 0.3 with the decisions that change, each at its own key."""
    reading = read.read_old(source)
    differ = {
        name
        for name, each in reading.decisions.items()
        if each.value != getattr(strategy, name, each.value)
    }
    # Of the rest, software among it, today's words may not hold.
    rows = tuple(row for row in TABLE if differ.intersection(row.names))
    wanted = changes(rows, keys.filled(reading.settings), lines_of(rows, context, strategy))
    lines = source.text.splitlines(keepends=True)
    local = decided(reading.settings, LOCAL_BATCH, 0)
    for key, value in wanted.items():
        at = reading.line_of(key) - 1
        if at >= 0 and value is REMOVED:
            lines[at] = ""
        elif at >= 0:
            old = r"""(=\s*)("[^"]*"|'[^']*'|[^\s#]+)"""
            lines[at] = re.sub(old, rf"\g<1>{json.dumps(value)}", lines[at], count=1)
        elif key == GLOBAL_BATCH and local.key.endswith("local_batch_size"):
            # Both came with the same release; those before accumulate no gradients.
            lines[local.line - 1] += f"global_batch_size = {value}\n"
        elif value is not REMOVED:
            raise ExpressError(f"{source.path} states no {key}, which would be {value}")
    return "".join(lines)


FORMAT = Format(
    name=NAME,
    title="torchtitan 0.3 command-line words",
    framework="torchtitan",
    emit=emit,
    recognise=read.recognise,
    read=read.read,
    rules=RULES,
    write_into=write_into,
    problems=problems,
)
