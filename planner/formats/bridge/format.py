"""The format ``bridge``: recipe overrides of Megatron-Bridge, a file or a launch script of them.

Of a plan all that a recipe may set is written, into a file what changes.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from planner.cost.context import Context
from planner.documents.file import REMOVED
from planner.errors import alike, did_you_mean
from planner.formats.bridge import mapping
from planner.formats.bridge.mapping import (
    ADAPTERS,
    BESIDE,
    CLASS,
    DEGREES,
    DROPOUT,
    FP32_GRADIENTS,
    GROUPS,
    LAYOUT,
    MODULES,
    NAMED,
    NAMES,
    NULL,
    OPTIONS,
    PACKING,
    PEFT,
    PRECISION,
    PRECISIONS,
    RANK,
    RELEASE,
    SHARDED,
    SHARES,
    TABLE,
    TITLE,
    UNPRICED,
    VIRTUAL,
)
from planner.formats.decision import KeyValue, explained, key_values, refuse
from planner.formats.format import (
    CheckContext,
    Emitted,
    Format,
    FormatRule,
    Located,
    OutputFile,
    ParsedConfig,
    Severity,
    SourceText,
    Violation,
)
from planner.formats.megatron.format import RULES as MEGATRON_RULES
from planner.formats.megatron.format import settings_of
from planner.formats.megatron.mapping import (
    SCHEDULE,
    decisions_of,
    edits,
    left_open,
    lines_by_option,
    with_layers,
)
from planner.formats.megatron.model import SIZES
from planner.formats.megatron.options import ETP, options_by_dest
from planner.formats.megatron.states import BF16_GRADIENTS, LOSS, SORTING, environment, traits_of
from planner.formats.megatron.states import FP32_GRADIENTS as ACCUMULATED
from planner.formats.settings import Settings, as_whole, decided, given, model_named, which
from planner.formats.shell.edit import edited
from planner.formats.shell.launch import (
    Entry,
    Launches,
    WordsReader,
    launches_in,
    open_processes,
    processes,
)
from planner.formats.shell.word import Command, Word
from planner.spec.strategy import Strategy
from planner.spec.training import MAX_RANK, Training, in_order

NAME = "bridge"
_OVERRIDE = re.compile(r"(\+{0,2})([A-Za-z_]\w*(?:\.\w+)*)=(.*)", re.DOTALL)


def recognise(source: SourceText) -> bool:
    """Return True if a file has overrides of decisions, or runs a recipe with any override."""
    text = source.text
    # Overrides of NeMo before Megatron-Bridge.
    is_other = re.search(r"\s\+{0,2}(?:trainer|exp_manager)\.\w+=", text)
    if is_other or source.path.endswith((".yaml", ".yml")):
        return False
    # A key of the model may be mistyped.
    has_keys = re.search(r"\s\+{0,2}(?:model|train)\.\w+=", text) is not None
    is_told = any(key.startswith(("model.", "train.")) and f"{key}=" in text for key in OPTIONS)
    return (("run_recipe.py" in text and has_keys) or is_told) and "\x00" not in text


def overrides_in(source: SourceText) -> Launches:
    """Return the launches in a file, with their overrides; raises InputError."""
    # Behind comments.
    first = re.match(r"\s*(?:#[^\n]*\n\s*)*['\"]?\+{0,2}([A-Za-z_]\w*(?:\.\w+)*)=", source.text)
    return launches_in(
        source,
        _starts,
        _overrides,
        lambda launch: len(launch[1]),
        is_list=first is not None and mapping.is_known(first[1]),
        lacking="no command has overrides such as model.KEY=VALUE",
    )


def _starts(commands: Iterable[Command]) -> Iterator[Command]:
    for each in commands:
        launcher = (*each.launcher, *each.words)
        program = next((word for word in each.words if word.text.endswith(".py")), None)
        yield replace(each, launcher=launcher, program=program)


def _overrides(words: Sequence[Word]) -> list[Entry]:
    found: list[Entry] = []
    for word in words:
        match = _OVERRIDE.fullmatch(word.text)
        # These stand without a field: a name, or nothing.
        if match and ("." in match[2] or match[2] in (PRECISION, PEFT)):
            found.append(Entry(word=word, name=match[2], joined=match[3]))
    return found


def read(source: SourceText) -> ParsedConfig:
    """Understand a file; raises InputError where it holds no override."""
    (arguments, found), _ = overrides_in(source)
    reader = WordsReader(format=NAME, source=source)
    reader.take(found, lambda each: _parsed(each.name, each.joined or ""))
    for each in found:
        if not mapping.is_known(each.name):
            reader.report(each, "unknown_key", *_unknown(each.name))
        elif each.name.startswith(f"{PEFT}.") and not each.word.text.startswith("+"):
            message = f"is in no recipe that overrides see: ++{each.name} adds it"
            reader.report(each, "unknown_key", message)
    open_ones = [each for each in found if each.unknown and each.name in OPTIONS]
    reader.note_open(open_ones)
    parts = [part for word in arguments.launcher for part in word.text.split("=", 1)]
    recipe = next((name for option, name in pairwise(parts) if option == NAMED), "")
    stated = reader.settings
    of_recipe = _of_recipe(recipe, stated)
    reader.settings = of_recipe | stated
    training, unpriced = read_adapters(recipe, reader.settings)
    launched = reader.take_launcher(arguments)
    options = mapping.as_options(reader.settings)
    decisions = decisions_of(options, processes(launched))
    # These are the recipe's where a file leaves them out, not Megatron's default.
    left = {"optimizer": "optimizer.optimizer", "mtp_layers": "model.mtp_num_layers"}
    for name, key in left.items():
        if key not in reader.settings:
            decisions.pop(name, None)
    # Recipes fuse the loss, those of mixtures what sorts tokens.
    fused = Located(key=NAME, value=True)
    traits = list(traits_of({LOSS: fused, SORTING: fused} | options))
    if training:
        decisions["profile"] = replace(reader.settings[RANK], value=NAME)
        said = {key: str(given(reader.settings, key)).lower() for key in (DROPOUT, SHARES)}
        if said[DROPOUT] not in ("0", "0.0", *NULL):
            traits.append(("kernels.adapter_dropout", True))
        if said[SHARES] == "false":
            traits.append(("kernels.expert_adapters", "each"))
    is_open = {*of_recipe, *(each.name for each in open_ones)}
    by_option = {option: reader.settings[key] for key, option in OPTIONS.items() if key in is_open}
    known = [key for key, each in of_recipe.items() if each.value is not None]
    brought = f"what {recipe} sets" if known[1:] else "the recipe's distributed optimizer"
    is_left = known[1:] or stated.keys().isdisjoint(SHARDED)
    return ParsedConfig(
        format=NAME,
        path=source.path,
        settings=reader.settings | launched,
        decisions=decisions,
        findings=tuple(reader.findings),
        traits=tuple(traits),
        training=training,
        unpriced=unpriced,
        supposes=(brought,) if is_left else (),
        left_open=left_open(by_option) | open_processes(launched),
        named_model=model_named(recipe, Located(key=NAMED)) if recipe else None,
    )


def _of_recipe(recipe: str, settings: Settings) -> dict[str, Located]:
    """Return an entry for the recipe named, and one per setting of it that nothing overrides.

    Of a recipe that is not known those are its degrees, without values, and the first is True.
    """
    if not recipe:
        return {}
    values = {key: _parsed(key, text) for key, text in mapping.brought(recipe).items()}
    degrees = () if DEGREES[0] in values else DEGREES
    found = {
        key: Located(value=value, key=key)
        for key, value in {**dict.fromkeys(degrees), **values}.items()
        # A name of precision replaces all of it.
        if settings.keys().isdisjoint((key, key.partition(".")[0]))
    }
    return {NAMED: Located(value=bool(degrees), key=NAMED), **found}


def _unknown(key: str) -> tuple[str, Severity]:
    """Return what is wrong with an unknown key; models of some recipes have further ones."""
    if key.startswith("model.") and not alike(key, OPTIONS, 0.85):
        return "is no key of Megatron's models; the recipe's own may have it", "warning"
    # A message lists the first few groups only.
    groups = f"groups are {', '.join(GROUPS.split()[:8])}, ..."
    hint = did_you_mean(key[:100], [*OPTIONS, PRECISION]) or groups
    return f"unknown key; {hint}", "error"


def _parsed(key: str, text: str) -> object:
    """Return the value that an override sets; raise ValueError with what is wrong with it."""
    if key in OPTIONS:
        return mapping.option_value(key, text)
    if key == "model.num_query_groups":
        return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else None
    plain = text.strip("'\"")
    if key == FP32_GRADIENTS:
        return mapping.switch(plain)
    if key == RANK:
        rank = as_whole(plain)
        if rank is None or not 1 <= rank <= MAX_RANK:
            raise ValueError(f"must be a whole number from 1 to {MAX_RANK:,}; given {plain[:60]!r}")
        return rank
    if key == MODULES:
        return tuple(word for word in plain.strip("[]").replace(" ", "").split(",") if word)
    return plain if key.startswith(f"{PEFT}.") else text


def read_adapters(recipe: str, settings: Settings) -> tuple[Training | None, str]:
    """Return what overrides of a recipe train, and why plans do not price it, where they do not.

    None where nothing speaks of adapters.
    """
    given = {key: each.value for key, each in settings.items() if key.startswith(PEFT)}
    is_off = str(given.pop(PEFT, "given")).lower() in NULL
    if is_off or not (given or "_peft_" in recipe):
        return None, ""
    rank, modules = given.get(RANK), given.get(MODULES)
    named, priced = modules if isinstance(modules, tuple) else (), NAMES
    kind, of_lora = str(given.get("peft._target_", CLASS)), CLASS
    refused = {f"peft._target_ {kind[:80]}: plans price {of_lora}": kind != of_lora}
    refused |= {
        f"{key}: {what}, which plans do not price": (
            str(given.get(key, "false")).lower() not in ("false", "[]", *NULL)
        )
        for key, what in UNPRICED.items()
    }
    refused |= {
        f"{MODULES}: unknown target {name[:60]!r}; plans price {', '.join(priced)}": (
            name not in priced
        )
        for name in named
    }
    unpriced = next(which(refused), "")
    if not unpriced and isinstance(rank, int) and isinstance(modules, tuple):
        chosen = {target for name in named for target in priced[name]}
        return Training(mode="lora", rank=rank, targets=in_order(chosen)), ""
    lacking = " and ".join(key for key in (RANK, MODULES) if key not in given)
    return None, unpriced or f"adapters are trained, and {lacking} left to the recipe"


def read_dumped(path: str, given: Settings) -> ParsedConfig | None:
    """The reading of what is printed, by ``group.field``; None where it is not whole."""
    heads = "model.num_attention_heads"
    if not given.keys() >= {heads, "model.num_layers", "train.micro_batch_size"}:
        return None
    words: dict[str, Located] = {}
    dests = {option.name: dest for dest, option in options_by_dest().items()}
    dtypes = {
        "float32": "fp32",
        "bfloat16": "bf16",
        "float16": "fp16",
        "uint8": "fp8",
    }
    for key, place in given.items():
        # Fields of these groups have the names of Megatron's arguments.
        is_printed = key.startswith(("model.", "train.", "optimizer.", "ddp."))
        option = mapping.option_of(key) if is_printed or key == "dataset.seq_length" else ""
        if option in dests and not (key == VIRTUAL and LAYOUT in given):
            text = str(place.value).strip("'")
            text = re.sub(r"torch\.(\w+)", lambda found: dtypes.get(found[1], found[0]), text)
            words[dests[option]] = replace(place, value=text, key=key)
    settings = settings_of(words)
    groups = given.get("model.num_query_groups")
    if groups and groups.value != given[heads].value:
        settings["--group-query-attention"] = replace(groups, value=True)
    held = given.get("ddp.grad_reduce_in_fp32")
    reduced = ACCUMULATED if held and held.value == "True" else BF16_GRADIENTS
    settings[reduced] = decided(given, "ddp.grad_reduce_in_fp32", True)
    return ParsedConfig(
        format=NAME,
        path=path,
        settings={place.key: place for place in settings.values()},
        decisions=decisions_of(settings),
    )


def emit(context: Context, strategy: Strategy) -> Emitted:
    """The overrides of a plan and the model's recipe; raises ExpressError with every reason."""
    refuse(TITLE, [*mapping.unbuilt(context), *mapping.unsaid(context, strategy)])
    training = context.traits.training
    recipe = mapping.recipe_of(context.model, training)
    lines = lines_by_option(TABLE, context, strategy)
    found: list[KeyValue] = []
    for key, option in OPTIONS.items():
        line = lines.get(option)
        is_left = option in BESIDE.split() and not line
        if is_left or option in SIZES.values():
            continue
        alike = "experts are split as the other layers are" if option == ETP else ""
        value = mapping.text_of(key, option, line, strategy)
        found.append(KeyValue(key=key, value=value, why=line.why if line else alike))
    precision = context.job.precision
    named = PRECISIONS[precision]
    found += key_values({PRECISION: (named, f"planned in {precision}")})
    found += mapping.gradients_apart(precision, context.traits.states.gradient_bytes)
    found += mapping.beside(context, strategy)
    found += ADAPTERS(context, strategy) if training.is_frozen else ()
    mtp = "model.mtp_num_layers"
    if not context.job.mtp_layers and (
        context.model.num_mtp_layers or mtp in mapping.brought(recipe)
    ):
        found += key_values(
            {mtp: ("null", "planned without the layers that predict further tokens")}
        )
    # What overrides do not find in a recipe is added: a name of precision has no fields, and
    # adapters are callable, which OmegaConf leaves out (training/utils/omegaconf_utils.py).
    added = (f"{PRECISION}.", f"{PEFT}.")
    words = [f"{'++' * each.key.startswith(added)}{each.key}={each.value}" for each in found]
    text = "".join(f"{shlex.quote(word)}\n" for word in words)
    variables = {
        "TRAIN_SCRIPT": "Megatron-Bridge's scripts/training/run_recipe.py",
        "LEARNING_RATE": "peak learning rate",
    }
    run = ["optimizer.lr=${LEARNING_RATE}"]
    if training.is_frozen:
        variables["PRETRAINED_CHECKPOINT"] = "folder of the frozen weights in Megatron's format"
        run.append("checkpoint.pretrained_checkpoint=${PRETRAINED_CHECKPOINT}")
    if not recipe:
        task = "peft" if training.is_frozen else "pretrain"
        variables["RECIPE"] = (
            "a recipe of your own that builds the model, exported by megatron.bridge.recipes, "
            f"with {task} in its name: Megatron-Bridge {RELEASE} has none of these sizes"
        )
    overrides = OutputFile(name="bridge.overrides", text=text)
    return Emitted(
        files=(overrides,),
        command=("${TRAIN_SCRIPT}", "--recipe", recipe or "${RECIPE}"),
        arguments=overrides.name,
        run=tuple(run),
        # Recipes of pretraining bring made-up data.
        mock=() if training.is_frozen else ("train.train_iters=10",),
        environment=environment(context, strategy),
        variables=variables,
        decided=explained(found),
    )


def write_into(source: SourceText, context: Context, strategy: Strategy) -> str:
    """A file of overrides with the decisions that change; raises ExpressError, InputError."""
    refuse(TITLE, list(mapping.unsaid(context, strategy)))
    given, lines = read(source).settings, lines_by_option(TABLE, context, strategy)
    stated = mapping.translated(given)
    # What no repair changes: where a file says nothing of it, it is the recipe's.
    of_job = {"global_batch", "seq_len", "precision", "optimizer", "expert_exchange", "mtp_layers"}
    rows = [
        own
        for own in TABLE
        if not (stated.keys().isdisjoint(own.keys) and of_job.issuperset(own.names))
    ]
    found = edits(rows, stated, lines.values())
    there = {*given, *SHARDED}
    texts = {
        key: mapping.text_of(key, option, lines.get(option), strategy)
        for key, option in OPTIONS.items()
        if option in found and (found[option] is not REMOVED or key in there)
    }
    if any(option not in OPTIONS.values() for option in found):
        texts[PRECISION] = PRECISIONS[context.job.precision]
    others = [*mapping.beside(context, strategy, found)]
    if context.traits.training.is_frozen and "--micro-batch-size" in found:
        others += PACKING(context, strategy)
    texts |= {each.key: each.value for each in others}
    wanted = {key: [f"{key}={text}"] for key, text in texts.items()}
    return edited(source, overrides_in, wanted, strategy.num_gpus, OPTIONS)


# Rules of Megatron-LM whose options overrides have.
SHARED = """
degrees_divide_processes expert_degrees_divide_processes tp_divides_heads tp_fits_kv_heads
pp_divides_layers chunks_divide_stage layout_fits layout_stands_alone ends_or_accounted
ends_leave_even_middle chunks_need_stages micro_batches_fill_chunks batch_divides
cp_divides_sequence ep_divides_experts instances_divide_dp full_recompute_is_complete
recompute_has_a_granularity selective_recompute_takes_modules host_layers_stand_alone
optimizer_offload_setup precision_aware_needs_sharded_adam megatron_fsdp_takes_all_processes
delayed_gradients_need_exchange layout_holds_mtp mtp_recomputes_single_layers
"""


def told_in(
    options_of: Callable[[Settings], Settings], spelled: Callable[[str], str]
) -> tuple[FormatRule, ...]:
    """Rules of Megatron-LM asked of the options that settings mean, and told as a file spells them.

    Where the file names a recipe, what a rule asks for may stand there, as far as nobody knows.
    """

    def told(rule: FormatRule) -> FormatRule:
        def check(settings: Settings, world: CheckContext) -> Iterator[Violation]:
            options, named = options_of(settings), given(settings, NAMED)
            known = {*settings} if named else {*settings, *mapping.in_recipes()}
            stated = {option for key, option in OPTIONS.items() if key in known}
            for broken in rule.check(options, world):
                asked = set(re.findall(r"--[a-z0-9-]+", broken.message))
                if named is None or asked <= options.keys() | stated:
                    yield Violation(key=spelled(broken.key), message=spelled(broken.message))

        return replace(rule, check=check)

    return tuple(told(rule) for rule in MEGATRON_RULES if rule.name in SHARED.split())


FORMAT = Format(
    name=NAME,
    title=TITLE,
    framework="megatron",
    emit=emit,
    recognise=recognise,
    read=read,
    rules=told_in(mapping.as_options, mapping.spelled),
    write_into=write_into,
    problems=mapping.problems,
    of_model=lambda reading, model: with_layers(
        reading, mapping.as_options(reading.settings), model
    ),
    trains=("full", "lora"),
    support={"megatron": {"schedules": (SCHEDULE,)}},
    narrows=mapping.narrows,
)
