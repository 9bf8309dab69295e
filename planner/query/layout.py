"""Completion of a file to a layout: what the file leaves open follows from the job."""

from dataclasses import dataclass, replace
from typing import Any, get_args

from planner.cost.context import Context
from planner.cost.kernels import peak_flops_per_s, usual_precision
from planner.cost.module_sets import module_sets
from planner.errors import InputError
from planner.formats.format import CheckContext, Finding, ParsedConfig
from planner.formats.registry import not_priced
from planner.frameworks.registry import CURRENT, load_traits, optimizer_names, profile_names
from planner.frameworks.settings import (
    usual_mtp_layers,
    with_optimizer,
    with_recompute_modules,
    with_training,
)
from planner.layers.adapter_targets import training_problem
from planner.limits import MAX_MTP_LAYERS, MAX_SEQ_LEN
from planner.query.from_file import ASSUME, Job
from planner.query.traits import profile_problem
from planner.query.values import (
    Gpus,
    Locations,
    Values,
    check_model,
    known_of,
    read_batch,
    read_gpus,
    shape_of,
)
from planner.search.space.interleaving import default_layers
from planner.spec.job import (
    USUAL_IMBALANCE_FRACTION,
    Documents,
    JobSpec,
    Precision,
    read_documents,
    usual_seq_len,
)
from planner.spec.strategy import (
    FIELD_DEFAULTS,
    MODEL_PARALLEL_DEGREES,
    POLICIES,
    POLICY_COUNT_FIELDS,
    STRATEGY_FIELDS,
    Strategy,
    split_values,
)
from planner.spec.traits import ExpertOverlap, FrameworkTraits, SupportTraits

# What stands for decisions of the training script or its launcher where nobody says them.
OF_SCRIPT = {
    "recompute": "nothing recomputed",
    "optimizer": "the optimizer adam",
    "zero_stage": "nothing sharded by the launcher",
}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A complete strategy with its context, legal or not, and its places in the file."""

    context: Context
    strategy: Strategy
    places: Locations
    assumes: tuple[str, ...] = ()  # what decides memory and nobody said: ``recompute``, ...

    @property
    def cautious(self) -> Context:
        """The context of plans to propose: the framework's uncertainty stays free."""
        margin = self.context.traits.memory_uncertainty_fraction
        return replace(self.context, margin_fraction=margin, module_sets=module_sets(self.context))


@dataclass(frozen=True, kw_only=True)
class Completed:
    """Inputs of rules besides the file, and the layout if it could be determined."""

    world: CheckContext
    findings: tuple[Finding, ...]
    layout: Layout | None  # None where the file contradicts itself or the job
    assumed: tuple[str, ...]  # what neither file nor job say, in words


def complete(
    reading: ParsedConfig, job: Job, framework: str, *, script_recomputes: bool = False
) -> Completed:
    """Fill in what the file leaves to the job, the model, the cluster and the framework."""
    values, asked, accelerator = Values(reading), job.request, job.cluster.accelerator
    check_model(values, job.model)
    gpus = read_gpus(values, asked=asked.num_gpus, of_cluster=job.cluster.num_accelerators)
    cuts = (*MODEL_PARALLEL_DEGREES, *(("ep", "etp") if job.model.moe else ()))
    if names := [name for name in cuts if name in reading.left_open]:
        told = " ".join(f"{ASSUME} {name}=N" for name in names)
        text = f"not known from the file, {told} says so; memory, network and time are not checked"
        values.add("job.left_open", f"{', '.join(names)}: {text}", *names)
        gpus = replace(gpus, dp=None)
    batch = None if gpus.dp is None else read_batch(values, gpus.dp, asked=asked.global_batch)
    is_length_open = asked.seq_len is None and values.given("seq_len") is None
    seq_len = _seq_len(values, job)
    precision = _precision(values, job)
    traits, unpriced = _trained(values, job, _traits(values, job, framework, gpus))
    strategy = batch and _strategy(values, job, traits.support, gpus, batch)
    known = {**shape_of(job.model), "model.family": job.model.family, "seq_len": seq_len}
    if strategy:
        known |= vars(strategy)
    world = CheckContext(
        num_gpus=gpus.num_gpus,
        decisions=known_of(reading, known, gpus, batch),
        compute_capability=accelerator.compute_capability,
        vendor=accelerator.vendor,
    )
    # What decides memory and a file may leave to the training script.
    left = (
        {"recompute": POLICY_COUNT_FIELDS, "optimizer": ("optimizer",)} if script_recomputes else {}
    )
    given = {name for name in reading.decisions if values.given(name) is not None}
    assumes = (
        *reading.assumes,
        *(name for name, stated in left.items() if given.isdisjoint(stated)),
    )
    if unpriced:
        values.add("job.unpriced", f"{unpriced}; memory and time are not checked")
    values.assumed += reading.supposes
    values.assumed += [OF_SCRIPT[name] for name in assumes if name in OF_SCRIPT]
    if named := not_priced(reading):
        values.findings.append(values.places.at(named[0], "job.not_priced", named[1]))
    layout = None
    has_bad_value = any(finding.kind == "bad_value" for finding in reading.findings)
    if strategy and batch and precision and not unpriced and not has_bad_value:
        spec = JobSpec(global_batch=batch["global_batch"], seq_len=seq_len, precision=precision)
        layout = Layout(
            context=_context(values, job, spec, traits, strategy.recompute_modules),
            strategy=strategy,
            places=values.places,
            assumes=(*assumes, *(["seq_len"] if is_length_open else [])),
        )
        if any(finding.rule in ("job.value", "job.model") for finding in values.findings):
            layout = None
    return Completed(
        world=world,
        findings=tuple(values.findings),
        layout=layout,
        assumed=tuple(values.assumed),
    )


def _context(
    values: Values,
    job: Job,
    spec: JobSpec,
    traits: FrameworkTraits,
    modules: tuple[str, ...] | None,
) -> Context:
    """The context of a layout; a finding where the framework has no such modules."""
    imbalance = job.request.imbalance_fraction
    usual = USUAL_IMBALANCE_FRACTION if imbalance is None else imbalance
    spec = replace(
        spec,
        imbalance_fraction=usual if job.model.moe else 0.0,
        documents=_documents(values, job.request.documents, spec.seq_len),
        mtp_layers=_mtp_layers(values, job, traits),
    )
    if modules is not None:
        try:
            traits = with_recompute_modules(traits, modules)
        except InputError as error:
            values.add("job.value", error.problems[0].message, "recompute_modules")
    return Context(
        model=job.model,
        job=spec,
        cluster=job.cluster,
        traits=traits,
        placements=traits.support.placements,
        schedules=traits.support.schedules,
    )


def _documents(values: Values, text: str | None, seq_len: int) -> Documents | None:
    """The documents that the command says, of at most a sequence.

    A mean alone is of documents batched as the file says; a finding where both say otherwise.
    """
    stated = values.reading.batching
    if text is None:
        return None
    if stated is not None and ":" not in text:
        text = f"{stated.value}:{text}"
    try:
        documents = read_documents(text, seq_len)
    except ValueError as error:
        raise InputError.single("command line", "--documents", str(error)) from None
    if stated is not None and stated.value != documents.batching:
        values.places.of["documents"] = stated
        values.add(
            "job.documents",
            f"the file's documents are {stated.value}; the job's are {documents.batching}",
            "documents",
        )
    return documents


def _mtp_layers(values: Values, job: Job, traits: FrameworkTraits) -> int:
    """Layers of multi-token prediction: the file's, else what the framework trains of the model."""
    stated = values.whole("mtp_layers", least=0, most=MAX_MTP_LAYERS)
    if stated is not None:
        return stated
    usual = usual_mtp_layers(job.model, traits)
    if usual:
        values.assumed.append(f"{usual} layer(s) of multi-token prediction, as the model has")
    return usual


def _seq_len(values: Values, job: Job) -> int:
    """The file's length, else the job's, else the most that the file allows or the usual one."""
    stated, asked = values.whole("seq_len", most=MAX_SEQ_LEN), job.request.seq_len
    longest, usual = values.reading.longest, usual_seq_len(job.model)
    if stated is not None:
        if asked not in (None, stated):
            text = f"the file's sequences have {stated} tokens; the job's have {asked}"
            values.add("job.seq_len", text, "seq_len")
        return stated
    if longest is None:
        if asked is None:
            values.assumed.append(f"sequences of {usual} tokens")
        return asked or usual
    most = min(int(longest.value), MAX_SEQ_LEN)
    if asked is None:
        values.assumed.append(f"sequences of {most} tokens, the most {longest.key} allows")
    elif asked > most:
        values.places.of["seq_len"] = longest
        text = f"sequences are cut to {most} tokens; the job's have {asked}"
        values.add("job.seq_len", text, "seq_len")
    return asked or most


def _precision(values: Values, job: Job) -> Precision | None:
    accelerator = job.cluster.accelerator
    if values.given("precision") is None:
        usual = usual_precision(accelerator)
        values.assumed.append(usual)
        return usual
    word = values.word("precision", get_args(Precision), rule="job.precision")
    precision: Precision | None = word  # type: ignore[assignment]
    try:
        if precision is not None:
            peak_flops_per_s(accelerator, precision)
    except ValueError as error:
        values.add("job.precision", str(error), "precision")
        return None
    return precision


def _traits(values: Values, job: Job, framework: str, gpus: Gpus) -> FrameworkTraits:
    """The file's profile, the job's, or the first with the file's schedule and stages; optimizer.

    What the file states of single traits comes before the job's settings.
    """
    asked, said = values.given("profile"), job.request
    # What is said of another framework says nothing of the file's.
    is_own = said.of_framework in ("", framework)
    profile = (is_own and said.profile) or CURRENT
    if problem := profile_problem(framework, profile):
        raise InputError.single("command line", "--profile", problem)
    names = [] if asked is None else [str(asked)]
    names += [profile, CURRENT, *profile_names(framework)]
    settings = (*values.reading.traits, *(said.settings if is_own else ()))
    profiles = (load_traits(framework, name, settings) for name in dict.fromkeys(names))
    offering = (each for each in profiles if _offers(each.support, values, job, gpus))
    traits = next(offering, None) or load_traits(framework, names[0], settings)
    optimizer = values.word("optimizer", optimizer_names(framework), rule="job.optimizer")
    traits = traits if optimizer is None else with_optimizer(traits, optimizer)
    beside = values.word("expert_exchange", get_args(ExpertOverlap))
    if beside is not None:
        overlap = replace(traits.overlap, expert_all_to_all_overlap=beside)  # type: ignore[arg-type]
        traits = replace(traits, overlap=overlap)
    held = values.whole("gradient_bytes", least=2, most=4)
    own = traits.states
    # By the traits, where a gradient is reduced as it is held.
    usual = own.gradient_bytes if own.gradient_bytes == own.gradient_reduce_bytes else None
    if values.given("zero_stage") in (2, 3) and own.zero2_gradient_bytes:
        usual = own.zero2_gradient_bytes
    if held is None or held == usual:
        return traits
    states = replace(own, gradient_bytes=held, gradient_reduce_bytes=held, zero2_gradient_bytes=0)
    return replace(traits, states=states)


def _offers(support: SupportTraits, values: Values, job: Job, gpus: Gpus) -> bool:
    """Return True if a profile has the file's schedule, and its pipeline or its ZeRO stage."""
    stages = support.frozen_zero_stages if job.training.is_frozen else support.zero_stages
    has_states = values.given("zero_stage") in (None, *stages)
    has_schedule = values.given("schedule") in (None, *support.schedules)
    return has_schedule and ("pp" in support.features if gpus.degrees["pp"] > 1 else has_states)


def _trained(values: Values, job: Job, traits: FrameworkTraits) -> tuple[FrameworkTraits, str]:
    """The traits with what the job trains; a finding where files contradict, or why unpriced."""
    reading = values.reading
    _, message = training_problem(job.model, job.training, traits.kernels)
    try:
        if not message:
            return with_training(traits, job.training), reading.unpriced
    except InputError as error:
        message = error.problems[0].message
    if reading.training is not None:
        return traits, reading.unpriced or message
    values.add("job.value", message)
    return traits, reading.unpriced


def _strategy(
    values: Values, job: Job, support: SupportTraits, gpus: Gpus, batch: dict[str, int]
) -> Strategy | None:
    """The strategy; None with more stages than layers, or where nothing says how states split."""
    num_layers, vpp = job.model.num_blocks, values.whole("vpp") or 1
    tp, pp = gpus.degrees["tp"], gpus.degrees["pp"]
    if pp > num_layers:
        text = f"every stage needs a layer: {job.model.name} has {num_layers}; given {pp}"
        values.add("legality.pp_at_most_layers", text, "pp")
        return None
    # Chunks of which a file says the number alone are equal ones.
    vpp_of_split = 1 if num_layers % (pp * vpp) else vpp
    layers = values.counts("layers_per_stage") or default_layers(num_layers, pp, vpp_of_split)
    every = zip(POLICIES, POLICY_COUNT_FIELDS, strict=True)
    counts = {policy: values.counts(name, layers, vpp) for policy, name in every}
    under = {policy: counted for policy, counted in counts.items() if counted}
    least_stage = min(support.zero_stages)
    is_said_elsewhere = "zero_stage" in values.reading.decisions or least_stage > 0
    if values.given("zero_stage") is None and is_said_elsewhere:
        text = (
            "another file says how states are split: check that one; "
            "memory, network and time are not checked here"
        )
        values.add("job.zero_stage", text, "zero_stage")
        return None
    ep = values.whole("ep") or 1
    # Of a model without experts a file says nothing by the width of their tensor parallelism.
    etp = values.whole("etp") if job.model.moe else None
    known = {"dp": gpus.dp, **gpus.degrees, **batch, "vpp": vpp, "ep": ep}
    known["etp"] = etp or int(support.usual_etp(tp, ep))
    is_offered = "sequence_parallel" in support.features
    must_shard = is_offered and "sequence_parallel_beside_tp" in support.limits
    usual = {
        **FIELD_DEFAULTS,
        "zero_stage": least_stage,
        "sequence_parallel": tp > 1 and must_shard,
        "placement": support.placements[0],
    }
    columns: dict[str, Any] = {
        name: known[name] if name in known else values.of(name, decision, usual[name])
        for name, decision in STRATEGY_FIELDS.items()
    }
    modules = values.words("recompute_modules")
    return Strategy(**columns, **split_values(layers, under), recompute_modules=modules)
