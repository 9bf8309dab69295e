"""The software of a question: frameworks, their profile and traits, what they train and how."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from planner.cost.context import Context
from planner.errors import InputError, did_you_mean, unknown
from planner.formats.format import Format
from planner.formats.registry import format_for, format_names, load_format
from planner.frameworks.registry import (
    CURRENT,
    FRAMEWORKS,
    Stack,
    load_traits,
    optimizer_names,
    profile_names,
    stack_named,
)
from planner.frameworks.settings import (
    usual_mtp_layers,
    with_optimizer,
    with_recompute_modules,
    with_training,
)
from planner.layers.adapter_targets import training_problem
from planner.layers.block import layer_groups
from planner.layers.op import LayerShape
from planner.layers.parameters import count_parameters
from planner.notes import NoteKind, Problems
from planner.query.options import word_of
from planner.query.query import Query
from planner.query.traits import profile_problem, read_settings
from planner.query.words import SEVERAL, meant_word
from planner.spec.cluster import ClusterSpec
from planner.spec.job import JobSpec, Precision, mtp_positions
from planner.spec.model import ModelSpec
from planner.spec.training import (
    ALL_LINEAR,
    FULL,
    MODES,
    TARGETS,
    USUAL_RANK,
    Training,
    read_targets,
)
from planner.spec.traits import FrameworkTraits
from planner.units import GB, GIB

ANY_FRAMEWORK = "any"
DEFAULT_FRAMEWORK, ADAPTER_FRAMEWORK = "megatron", "accelerate"
Chosen = TypeVar("Chosen")


def meant(option: str, text: str, known: Sequence[str], problems: Problems) -> str:
    """Return the known value that a word means, noted where it is spelled otherwise."""
    found = meant_word(option, text, known)
    if found != text:
        problems.note(NoteKind.given, f"{option} {text} is read as {found}", option)
    return found


def supporting(
    chosen: Sequence[Chosen],
    reasons: Mapping[str, str],
    option: str,
    given: object,
    problems: Problems,
) -> tuple[Chosen, ...]:
    """Return what supports an option; the rest is noted, or a problem where nothing supports it.

    ``reasons`` by the frameworks' names, in the order of ``chosen``: why one cannot, else empty.
    """
    kept = tuple(each for each, why in zip(chosen, reasons.values(), strict=True) if not why)
    left = ", ".join(name for name, why in reasons.items() if why)
    if kept and left:
        problems.note(NoteKind.given, f"left out for {option} {given}: {left}", option)
    for why in () if kept else reasons.values():
        problems.add(option, why)
    return kept


def format_meant(framework: str | None) -> Format | None:
    """Return the format whose name stands in place of a framework's."""
    is_format = framework in format_names() and framework not in FRAMEWORKS
    return load_format(framework) if framework and is_format else None


def _not_built(model: ModelSpec | None, cluster: ClusterSpec) -> str:
    """Return why no file starts the default framework on layers that FSDP2 trains, or nothing."""
    if model is None or not model.has_special_layers:
        return ""
    # FSDP2 gathers layer by layer: gradients of one in 32 bits take a quarter of HBM at most.
    layer_bytes = 4 * count_parameters(model) / model.num_blocks
    if layer_bytes > cluster.accelerator.hbm_bytes / 4:
        return ""
    traits, job = load_traits(DEFAULT_FRAMEWORK), JobSpec(global_batch=1, seq_len=1)
    context = Context(model=model, job=job, cluster=cluster, traits=traits)
    return next(format_for(context).refused(context), "")


def usual_software(model: ModelSpec | None, cluster: ClusterSpec | None) -> tuple[str, str, str]:
    """Return the framework and profile to train all weights with, and why where it is not usual."""
    usual = DEFAULT_FRAMEWORK, CURRENT, ""
    if cluster is None:
        return usual
    accelerator = cluster.accelerator
    if accelerator.vendor not in load_traits(DEFAULT_FRAMEWORK).support.vendors:
        for name in FRAMEWORKS:
            for profile in profile_names(name):
                if accelerator.vendor in load_traits(name, profile).support.vendors:
                    return name, profile, f"runs on {accelerator.name}"
    # PCIe 5.0 x16 has 63 GB/s a direction; cards up to 48 GiB are those of workstations.
    if cluster.domain.bytes_per_s <= 64 * GB and accelerator.hbm_bytes <= 48 * GIB:
        return "accelerate", CURRENT, "FSDP, as people train on workstation cards"
    if reason := _not_built(model, cluster):
        return "accelerate", CURRENT, f"FSDP2 starts what Megatron-LM does not: {reason}"
    if 0 < accelerator.compute_capability < 8.0:
        return DEFAULT_FRAMEWORK, "classic", "Transformer Engine needs Ampere or newer"
    if accelerator.compute_capability >= 9.0 and model and model.moe:
        return DEFAULT_FRAMEWORK, "bridge", "tokens go to experts by DeepEP or HybridEP"
    return usual


def read_frameworks(
    query: Query,
    fmt: Format | None,
    model: ModelSpec | None,
    cluster: ClusterSpec | None,
    problems: Problems,
) -> tuple[FrameworkTraits, ...]:
    """Return the frameworks asked for, else the usual one, that have the profile, so changed."""
    profile = query.get("profile")
    name = query.get("framework")
    if format_meant(name) or (name is None and fmt is not None):
        name = (format_meant(name) or fmt).framework  # type: ignore[union-attr]
    if not name and query.get("train") == "full":
        name, usual, why = usual_software(model, cluster)
        name, usual = (DEFAULT_FRAMEWORK, profile) if "profile" in query.given else (name, usual)
        if usual != profile or name != DEFAULT_FRAMEWORK:
            profile = usual
            other = "--profile" if name == DEFAULT_FRAMEWORK else "--framework"
            text = f"{name} {profile}: {why} (others: {other})"
            problems.note(NoteKind.given, text, "framework")
    if not name:  # not every framework trains adapters
        name = ADAPTER_FRAMEWORK
        text = f"{ADAPTER_FRAMEWORK} (default for adapters; --framework names another)"
        problems.note(NoteKind.default, text, "framework")
    known = (*FRAMEWORKS, ANY_FRAMEWORK)
    name = meant("--framework", name, known, problems)
    stack = None if name in known else stack_named(name)
    hint = SEVERAL.get(name.lower()) or did_you_mean(name, known)
    if name not in known and not stack and not hint:
        # The nearest is FSDP2 around the model's own code.
        stack, name = Stack(framework="accelerate", profile=CURRENT), f"{name}, which is not known,"
    if stack and name not in known:
        facts = ", ".join(f"{path.partition('.')[2]} {word_of(it)}" for path, it in stack.facts)
        text = f"{name} is priced as {stack.framework} {stack.profile}" + (facts and f", {facts}")
        problems.note(NoteKind.given, text, "framework")
        name, profile = stack.framework, query.given.get("profile", stack.profile)
    elif name not in known:
        problems.add("--framework", unknown("framework", name, known, hint))
    named = [each for each in FRAMEWORKS if name in (each, ANY_FRAMEWORK)]
    lacking = {each: profile_problem(each, profile) for each in named}
    names = supporting(named, lacking, "--profile", profile, problems)
    optimizer = meant("--optimizer", query.get("optimizer"), optimizer_names(), problems)
    settings = problems.read(partial(read_settings, query.get("settings"))) or ()
    settings = tuple({**dict(stack.facts if stack else ()), **dict(settings)}.items())
    loaded = [load_traits(each, profile, settings) for each in names]
    lacking = {each.name: _refused(with_optimizer, each, optimizer) for each in loaded}
    return tuple(
        _with_options(with_optimizer(each, optimizer), query, problems)
        for each in supporting(loaded, lacking, "--optimizer", optimizer, problems)
    )


def _refused(change: Callable[..., object], traits: FrameworkTraits, value: object) -> str:
    """Why traits cannot be changed so; empty where they can."""
    try:
        change(traits, value)
    except InputError as error:
        return error.problems[0].message
    return ""


def _with_options(traits: FrameworkTraits, query: Query, problems: Problems) -> FrameworkTraits:
    """Traits with the recompute modules and the uncertainty a user gives."""
    modules, percent = query.get("recompute_modules"), query.get("margin")
    recompute = query.get("recompute")
    if None not in (modules, recompute) and "selective" not in recompute.split("|"):
        problems.add(
            "--recompute-modules", f"needs --recompute selective; given --recompute {recompute}"
        )
    if modules is not None:
        names = [name.strip() for name in modules.split(",") if name.strip()]
        traits = problems.read(partial(with_recompute_modules, traits, names)) or traits
        if "selective" not in traits.support.policies:
            offered = f"{traits.name} ({traits.profile}) has no selective recomputation"
            problems.add("--recompute-modules", f"{offered}; given {modules}")
    if percent is not None:
        traits = replace(traits, memory_uncertainty_fraction=percent / 100.0)
    return traits


def frameworks_at_precision(
    precision: Precision, chosen: Sequence[FrameworkTraits], problems: Problems
) -> tuple[FrameworkTraits, ...]:
    """Return the frameworks that train in the precision."""
    lacking = {
        each.name: ""
        if precision in each.support.precisions
        else f"{each.name} ({each.profile}) trains in {', '.join(each.support.precisions)}; "
        f"given {precision}"
        for each in chosen
    }
    return supporting(chosen, lacking, "--precision", precision, problems)


def read_training(query: Query, problems: Problems) -> Training:
    """Return what the options say is trained."""
    word, rank, targets = (query.get(name) for name in ("train", "lora_rank", "lora_targets"))
    mode = next((each for each in MODES if each == word), None)
    if mode is None:
        instead = (
            "Several models at once are not planned: plan the one that is trained as full, lora or "
            "qlora, and leave room for a frozen reference with --margin PERCENT of HBM: its "
            "weights take 2 bytes a parameter, over the GPUs that share them"
            if word.strip().lower() in ("dpo", "kto", "orpo", "simpo", "ppo", "grpo", "rlhf", "rl")
            else ""
        )
        problems.add("--train", unknown("way to train", word, MODES, instead))
        return FULL
    if mode == "full":
        for option, value in (("--lora-rank", rank), ("--lora-targets", targets)):
            if value is not None:
                problems.add(option, "belongs to --train lora or qlora; given full")
        return FULL
    chosen = problems.parsed("--lora-targets", targets or ALL_LINEAR, read_targets)
    if chosen is None:
        return FULL
    if rank is None:
        problems.note(
            NoteKind.default, f"adapters of rank {USUAL_RANK} (--lora-rank changes it)", "lora_rank"
        )
    return Training(mode=mode, rank=rank or USUAL_RANK, targets=chosen)


def frameworks_that_train(
    training: Training,
    chosen: Sequence[FrameworkTraits],
    model: ModelSpec | None,
    precision: Precision,
    problems: Problems,
) -> tuple[FrameworkTraits, ...]:
    """Return the traits of frameworks that train what is asked; others are noted, or a problem."""
    if not training.is_frozen:
        return tuple(chosen)
    if model is not None and not model.mixer:
        training = training.without_mixers
    lacking = {each.name: _refused(with_training, each, training) for each in chosen}
    kept = supporting(chosen, lacking, "--train", training.mode, problems)
    if training.targets == TARGETS and any(traits.kernels.joins_adapters for traits in kept):
        problems.note(
            NoteKind.default,
            "adapters on all linear layers; NVIDIA's recipes have them on linear_qkv, of some "
            "models on linear_proj too (--lora-targets)",
            "lora_targets",
        )
    refused: dict[tuple[str, str], None] = {}
    for traits in kept:
        # 8-bit products beside adapters are Transformer Engine's (megatron/bridge/peft/utils.py).
        narrow = ("fp8", "fp8_block", "mxfp8") if traits.kernels.joins_adapters else ()
        if precision not in ("bf16", "fp16", *narrow):
            allowed = ", ".join(("bf16", "fp16", *narrow))
            message = f"{training.mode} under {traits.name} computes in {allowed} here"
            refused["--precision", f"{message}; given {precision}"] = None
        if model is not None:
            refused[training_problem(model, training, traits.kernels)] = None
    for option, message in filter(all, refused):
        problems.add(option, message)
    return tuple(with_training(each, training) for each in kept)


def frameworks_with_mtp(
    given: int | None,
    model: ModelSpec | None,
    chosen: Sequence[FrameworkTraits],
    problems: Problems,
) -> tuple[FrameworkTraits, ...]:
    """Return the frameworks that train so many layers of multi-token prediction."""
    if model is None:
        return tuple(chosen)
    if given is None:
        usual, own = [usual_mtp_layers(model, traits) for traits in chosen], model.num_mtp_layers
        layers = f"{own} layer{'s' * (own > 1)} of multi-token prediction"
        texts = {
            True: f"trained with its {layers} (default; --mtp-layers 0: without)",
            False: f"trained without {model.name}'s {layers}",
        }
        for is_trained, text in texts.items() if own else ():
            both = zip(chosen, usual, strict=True)
            if names := [each.name for each, number in both if bool(number) == is_trained]:
                problems.note(NoteKind.default, f"{', '.join(names)}: {text}", "mtp_layers")
    elif given and not mtp_positions(model):
        text = f"{given} given; a {model.architecture} with position {model.position} has none: 0"
        problems.add("--mtp-layers", text)
    elif given:
        without = "is planned without them: allowed is 0"
        lacking = {
            each.name: ""
            if "mtp" in each.support.features
            else f"{given} given; {each.name} ({each.profile}) {without}"
            for each in chosen
        }
        return supporting(chosen, lacking, "--mtp-layers", given, problems)
    return tuple(chosen)


def unsupported_hardware(
    chosen: Sequence[FrameworkTraits], cluster: ClusterSpec, problems: Problems
) -> None:
    """Note what frameworks are not made to run on."""
    accelerator, vendor = cluster.accelerator, cluster.accelerator.vendor
    # Transformer Engine asks for a compute capability of 8.
    is_too_old = 0 < accelerator.compute_capability < 8.0
    for traits in chosen:
        if is_too_old and traits.kernels.saved.name == "transformer_engine":
            text = (
                f"{traits.name} {traits.profile} computes with Transformer Engine, which does not "
                f"run on {accelerator.architecture}; --profile classic stands for kernels that do"
            )
            problems.note(NoteKind.default, text, "profile")
        if vendor not in traits.support.vendors:
            text = (
                f"{traits.name} runs on {vendor} hardware; it is made for "
                f"{', '.join(traits.support.vendors)}"
            )
            problems.note(NoteKind.default, text, "framework")


def idle_modules(model: ModelSpec, traits: FrameworkTraits) -> Iterator[str]:
    """Yield the selected modules that alone would save no byte in any layer of the model."""
    # Every axis in use, so that every tensor a layer can keep is there.
    sharded = LayerShape.all_of(2.0, seq_len=8)
    for module in traits.recompute.selected:
        alone = replace(traits.recompute, selected=(module,))
        groups = layer_groups(model, sharded, replace(traits, recompute=alone))
        ops = [op for group in groups for op in group.ops]
        if not any((op.kept_bytes < op.saved_bytes).any() for op in ops):
            yield module


def note_idle_modules(contexts: Sequence[Context], problems: Problems) -> None:
    """Note recompute modules that were asked for and save nothing."""
    for model, traits in ((context.model, context.traits) for context in contexts):
        for name in idle_modules(model, traits):
            problems.note(
                NoteKind.default,
                f"recompute module {name} saves nothing: the layers of {model.name} keep no "
                f"tensor that it would rebuild under {traits.name}",
                "recompute_modules",
            )
