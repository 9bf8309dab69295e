"""The format ``bridge``: recipe overrides of Megatron-Bridge, and its rules.

Of a plan all that a recipe may set is written, into a file what changes. The decisions are those of
Megatron's table; here stands how Bridge says them otherwise.
"""

import csv
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from itertools import chain

from planner.cost.context import Context
from planner.documents.file import REMOVED
from planner.formats.bridge import keys
from planner.formats.bridge.adapters import PEFT, Override, adapter_overrides, packing
from planner.formats.bridge.read import NAME, overrides_in, read, recognise
from planner.formats.decision import (
    KeyValue,
    Table,
    lines_of,
    nothing,
    reasons,
    refuse,
    which,
    wrong_profile,
)
from planner.formats.format import (
    CheckContext,
    Emitted,
    ExplainedKey,
    Format,
    FormatRule,
    OutputFile,
    SourceText,
    Violation,
)
from planner.formats.megatron import decisions, runtime
from planner.formats.megatron.decisions import SHARDING, optimizer_problems
from planner.formats.megatron.decisions_layout import SCHEDULE, selected_modules
from planner.formats.megatron.format import RULES as MEGATRON_RULES
from planner.formats.megatron.model import SIZES, shape_reasons
from planner.formats.megatron.options import CHUNKS, ETP, load_options, row, words_of
from planner.formats.settings import Settings
from planner.formats.shell.edit import edited
from planner.spec.model import ModelSpec
from planner.spec.strategy import PLACEMENT_NAMES, Strategy
from planner.spec.training import FULL, Training

RELEASE = "0.6.2"


@cache
def recipes() -> Sequence[Mapping[str, str]]:
    """Rows of the table: the recipe and its model's sizes by the names of a model file."""
    path = resources.files(__package__).joinpath("recipes.csv")
    return tuple(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def recipe_of(model: ModelSpec, training: Training = FULL) -> str:
    """The recipe of the model, of several the one for sequences as long; empty: there is none.

    Models that differ in how positions are scaled, not in sizes, share recipes.
    """
    own = dict(vars(model))
    if model.moe:
        own |= vars(model.moe)
    shape = {key: str(value) for key, value in own.items()}
    sizes = recipes()[0].keys() - {"recipe", "adapters", "max_seq_len"}
    wanted = {key: shape.get(key, "") for key in sizes}
    fitting = [row for row in recipes() if row.items() >= wanted.items()]
    if not fitting:
        return ""
    nearest = min(fitting, key=lambda row: row["max_seq_len"] != shape["max_seq_len"])
    return nearest["adapters" if training.is_frozen else "recipe"]


def unbuilt(context: Context) -> Iterator[str]:
    """Return why no recipe builds the model: there is none, and Megatron's GPT model is another."""
    found = () if recipe_of(context.model) else shape_reasons(context)
    return (f"{reason}, and Megatron-Bridge {RELEASE} has no recipe of it" for reason in found)


TITLE = "Megatron-Bridge"
_CAPACITY = f"{runtime.CAPACITY} {runtime.PADS}"
_EXCHANGE = "--overlap-moe-expert-parallel-comm --delay-wgrad-compute"
TABLE: Table = (
    *decisions.TABLE,
    row("expert_exchange", _EXCHANGE, runtime.exchange_choices, runtime.of_exchange),
    row("", _CAPACITY, runtime.capacity_choices, nothing),
)
# Options that are stated only where a plan needs them.
_BESIDE = f"--ckpt-format --use-precision-aware-optimizer --mtp-num-layers {_EXCHANGE} {_CAPACITY}"


def unsaid(context: Context, strategy: Strategy) -> Iterator[str]:
    """Every decision that no override expresses."""
    yield from reasons(TABLE, context, strategy)
    yield from _unnamed(context)
    yield from which(runtime.gradient_reasons(context, strategy))
    if strategy.zero_stage < 2:
        return
    states, placement = context.traits.states, strategy.placement
    held = states.zero2_gradient_bytes or states.gradient_bytes
    if held != 2:
        yield "gradient_bytes: 4 under Megatron-FSDP; overrides cannot name its data types"
    if placement != PLACEMENT_NAMES[0]:
        yield f"placement: {placement} under Megatron-FSDP, which takes the usual order"


def problems(context: Context) -> Iterator[str]:
    """Yield what cannot be expressed whatever the layout: the model, precision and optimizer."""
    yield from unbuilt(context)
    yield from optimizer_problems(context)
    yield from _unnamed(context)
    yield from wrong_profile(context, ("nanotron", "llm.c", "classic", "zero-bubble"), TITLE)


def _unnamed(context: Context) -> Iterator[str]:
    """Yield what Megatron has an option for, and Bridge no name."""
    precision, optimizer = context.job.precision, context.traits.optimizer.name
    if precision not in keys.PRECISIONS:
        yield f"precision: {precision}; allowed are {', '.join(keys.PRECISIONS)}"
    if optimizer == "adam-bf16":
        yield f"optimizer: {optimizer}; overrides cannot name the data types of its states"


def _lines(context: Context, strategy: Strategy) -> dict[str, KeyValue]:
    """Return a plan in Megatron's options, by key; chunks of a stage are given by number."""
    lines = {line.key: line for line in lines_of(TABLE, context, strategy)}
    lines.pop("--num-layers-per-virtual-pipeline-stage", None)
    if strategy.vpp > 1:
        lines[CHUNKS] = KeyValue(key=CHUNKS, value=strategy.vpp, why="chunks per stage")
    return lines


def emit(context: Context, strategy: Strategy) -> Emitted:
    """The overrides of a plan and the model's recipe; raises ExpressError with every reason."""
    refuse(TITLE, [*unbuilt(context), *unsaid(context, strategy)])
    training = context.traits.training
    recipe = recipe_of(context.model, training)
    lines = _lines(context, strategy)
    found: list[Override] = []
    for key, option in keys.OPTIONS.items():
        line = lines.get(option)
        is_left = option in _BESIDE.split() and not line
        if is_left or option in SIZES.values():
            continue
        why = "experts are split as the other layers are" if option == ETP else ""
        if line:
            why = line.why
        found.append((key, _text(key, option, line, strategy), why))
    precision = context.job.precision
    found.append((keys.PRECISION, keys.PRECISIONS[precision], f"planned in {precision}"))
    found += keys.gradients_apart(precision, context.traits.states.gradient_bytes)
    found += chain(*_beside(context, strategy).values())
    found += adapter_overrides(context, strategy)
    if context.model.num_mtp_layers and not context.job.mtp_layers:
        why = "planned without the layers that predict further tokens"
        found.append(("model.mtp_num_layers", "null", why))
    # What overrides do not find in a recipe is added: a name of precision has no fields, and
    # adapters are callable, which OmegaConf leaves out (training/utils/omegaconf_utils.py).
    added = (f"{keys.PRECISION}.", f"{PEFT}.")
    words = [f"{'++' * key.startswith(added)}{key}={value}" for key, value, _ in found]
    text = "".join(f"{shlex.quote(word)}\n" for word in words)
    variables = {
        "TRAIN_SCRIPT": "Megatron-Bridge's scripts/training/run_recipe.py",
        "LEARNING_RATE": "peak learning rate",
    }
    words.append("optimizer.lr=${LEARNING_RATE}")
    if training.is_frozen:
        variables["PRETRAINED_CHECKPOINT"] = "folder of the frozen weights in Megatron's format"
        words.append("checkpoint.pretrained_checkpoint=${PRETRAINED_CHECKPOINT}")
    if not recipe:
        task = "peft" if training.is_frozen else "pretrain"
        variables["RECIPE"] = (
            "a recipe of your own that builds the model, exported by megatron.bridge.recipes, "
            f"with {task} in its name: Megatron-Bridge {RELEASE} has none of these sizes"
        )
    overrides = OutputFile(name="bridge.overrides", text=text)
    return Emitted(
        files=(overrides,),
        command=("${TRAIN_SCRIPT}", "--recipe", recipe or "${RECIPE}", *words),
        environment=runtime.environment(context, strategy),
        variables=variables,
        decided=tuple(
            ExplainedKey(key=key, value=value, why=why) for key, value, why in found if why
        ),
    )


def _beside(context: Context, strategy: Strategy) -> Mapping[tuple[str, ...], Sequence[Override]]:
    """Return overrides of recipe settings that contradict a plan, by the options that need them.

    Beside Megatron-FSDP: megatron/bridge/perf_recipes/llama/gb200/llama3.py. Beside recomputation
    and offload: megatron/core/transformer; CUDA graphs of recipes hold layers or parts of them.
    """
    stage = strategy.zero_stage
    exchanges = runtime.exchanges_beside_batches(context, strategy)
    is_double = stage == 3 and not exchanges
    selective, full, offloaded = map(any, strategy.policy_counts)
    modules = selected_modules(context, strategy) if selective else ()
    apart = "saved activations go to the host, weights do not"
    overlap = "model.moe_shared_expert_overlap", "false", "the shared expert is recomputed"
    sharding = (
        ("ddp.fsdp_double_buffer", str(is_double).lower(), ""),
        ("ddp.average_in_collective", "false", ""),
        ("ddp.keep_fp8_transpose_cache", "false", ""),
        ("model.gradient_accumulation_fusion", "false", ""),
    )
    offload = (
        ("model.cpu_offloading", "true", apart),
        ("model.cpu_offloading_weights", "false", apart),
        ("model.cuda_graph_impl", "none", "no CUDA graph holds what is offloaded"),
    )
    recomputed = ("model.cuda_graph_impl", "none", "no CUDA graph holds what is recomputed")
    beside_recomputation = []
    if "shared_experts" in modules:
        beside_recomputation.append(overlap)
    if full or "moe" in modules:
        beside_recomputation.append(recomputed)
    return {
        (SHARDING,): sharding if stage > 1 else (),
        ("--cpu-offloading-num-layers",): offload if offloaded else (),
        ("--recompute-granularity", "--recompute-modules"): beside_recomputation,
    }


def _text(key: str, option: str, line: KeyValue | None, strategy: Strategy) -> str:
    """The value of an override; without a line what leaves it to none of the recipe's."""
    known = load_options()[option]
    if not known.takes_values:
        return "true" if line else "false"
    if line is None:
        own = {ETP: str(strategy.etp), SHARDING: "no_shard", CHUNKS: "null"}
        return own.get(option, known.default.removesuffix(".0") or "null")
    _, *words = words_of(option, line.value)
    if known.nargs:
        return f"[{','.join(words)}]"
    return f"'{words[0]}'" if key == keys.LAYOUT else words[0]


def write_into(source: SourceText, context: Context, strategy: Strategy) -> str:
    """A file of overrides with the decisions that change; raises ExpressError, InputError."""
    refuse(TITLE, list(unsaid(context, strategy)))
    given, lines = read(source).settings, _lines(context, strategy)
    stated = keys.translated(given)
    # What no repair changes: where a file says nothing of it, it is the recipe's.
    of_job = {"global_batch", "seq_len", "precision", "optimizer", "expert_exchange", "mtp_layers"}
    rows = []
    for own in TABLE:
        is_stated = not stated.keys().isdisjoint(own.keys)
        if is_stated or not of_job.issuperset(own.names):
            rows.append(own)
    found = decisions.edits(rows, stated, lines.values())
    texts = {}
    for key, option in keys.OPTIONS.items():
        if option in found and (found[option] is not REMOVED or key in given):
            texts[key] = _text(key, option, lines.get(option), strategy)
    if any(option not in keys.OPTIONS.values() for option in found):
        texts[keys.PRECISION] = keys.PRECISIONS[context.job.precision]
    beside: list[Override] = []
    for options, overrides in _beside(context, strategy).items():
        if not found.keys().isdisjoint(options):
            beside += overrides
    if context.traits.training.is_frozen and "--micro-batch-size" in found:
        beside += packing(context, strategy)
    texts |= {key: text for key, text, _ in beside}
    wanted = {key: [f"{key}={text}"] for key, text in texts.items()}
    return edited(source, overrides_in, wanted, strategy.num_gpus, keys.OPTIONS)


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


def _in_overrides(rule: FormatRule) -> FormatRule:
    """A rule of Megatron-LM asked of its options, and told in the keys of the overrides.

    Where the file names a recipe, what a rule asks for may stand there.
    """

    def check(settings: Settings, world: CheckContext) -> Iterable[Violation]:
        options = keys.as_options(settings)
        for broken in rule.check(options, world):
            asked = set(re.findall(r"--[a-z0-9-]+", broken.message))
            if keys.NAMED in settings and not asked <= options.keys():
                continue
            key, message = keys.spelled(broken.key), keys.spelled(broken.message)
            yield Violation(key=key, message=message)

    return replace(rule, check=check)


FORMAT = Format(
    name=NAME,
    title=TITLE,
    framework="megatron",
    emit=emit,
    recognise=recognise,
    read=read,
    rules=tuple(_in_overrides(rule) for rule in MEGATRON_RULES if rule.name in SHARED.split()),
    write_into=write_into,
    problems=problems,
    trains=("full", "lora"),
    support={"megatron": {"schedules": (SCHEDULE,)}},
)
