"""From a reading to a complete layout: what the file leaves open follows from the job."""

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, get_args

from planner.check.degrees import Batch, Gpus, batch_of, gpus_of
from planner.check.documents import documents_of
from planner.check.job import Job, Software, shape_of
from planner.check.layout import Layout, Place
from planner.check.own_model import unlike
from planner.check.values import Values
from planner.cost.context import Context
from planner.cost.kernels import peak_flops_per_s, usual_precision
from planner.errors import InputError
from planner.formats.format import Finding, Reading, Value, World
from planner.frameworks.optimizers import optimizer_names
from planner.frameworks.registry import CURRENT, load_traits, profile_names
from planner.frameworks.settings import (
    usual_mtp_layers,
    with_optimizer,
    with_recompute_modules,
    with_training,
)
from planner.layers.adapters import training_problem
from planner.limits import MAX_SEQ_LEN
from planner.query.traits import profile_problem
from planner.search.space.interleaving import default_layers
from planner.spec.job import (
    MAX_MTP_LAYERS,
    USUAL_IMBALANCE_FRACTION,
    JobSpec,
    Precision,
    usual_seq_len,
)
from planner.spec.strategy import (
    FIELD_DEFAULTS,
    MODEL_PARALLEL_DEGREES,
    POLICIES,
    POLICY_COUNT_FIELDS,
    STRATEGY_FIELDS,
    Strategy,
    policy_counts,
    split_values,
)
from planner.spec.traits import ExpertOverlap, FrameworkTraits, StateTraits, SupportTraits

CUTS = (*MODEL_PARALLEL_DEGREES, "ep", "etp")
"""Decisions without which nothing can be priced."""
NOT_KNOWN = "not known from the file; memory, network and time are not checked here"
NO_STAGE = (
    "another file says how states are split: check that one; "
    "memory, network and time are not checked here"
)


@dataclass(frozen=True, kw_only=True)
class Completed:
    """What rules need beside the file, and the layout where it could be made out."""

    world: World
    layout: Layout | None
    """None where the file contradicts itself or the job."""
    findings: tuple[Finding, ...]
    assumed: tuple[str, ...]
    """What neither file nor job say, in words."""


def complete(
    reading: Reading, job: Job, framework: str, *, script_recomputes: bool = False
) -> Completed:
    """Fill in what the file leaves to the job, the model, the cluster and the framework."""
    values = Values(reading)
    check_model(values, job)
    gpus = gpus_of(values, asked=job.num_gpus, of_cluster=job.cluster.num_accelerators)
    if names := [name for name in CUTS if name in reading.left_open]:
        values.add("job.left_open", f"{', '.join(names)}: {NOT_KNOWN}", *names)
        gpus = replace(gpus, dp=None)
    batch = None if gpus.dp is None else batch_of(values, gpus.dp, asked=job.global_batch)
    seq_len = _seq_len(values, job)
    precision = _precision(values, job)
    traits, unpriced = _trained(values, job, _traits(values, job, framework, gpus))
    strategy = None
    if gpus.dp is not None and batch is not None:
        strategy = _strategy(values, job, traits.support, gpus, batch)
    world = _world(reading, job, gpus, batch, seq_len, strategy)
    has_bad_value = any(finding.kind == "bad_value" for finding in reading.findings)
    assumes = (*reading.assumes, *(_left_to_script(values) if script_recomputes else ()))
    if unpriced:
        values.add("job.unpriced", f"{unpriced}; memory and time are not checked")
        strategy = None
    values.assumed += reading.supposes
    values.assumed += [_SCRIPTS[name] for name in assumes if name in _SCRIPTS]
    layout = None
    if strategy is not None and batch is not None and precision and not has_bad_value:
        context = Context(
            model=job.model,
            job=JobSpec(
                global_batch=batch.global_batch,
                seq_len=seq_len,
                precision=precision,
                imbalance_fraction=_imbalance_fraction(job),
                documents=documents_of(values, job, seq_len),
                mtp_layers=_mtp_layers(values, job, traits),
            ),
            cluster=job.cluster,
            traits=_with_modules(values, traits, strategy),
            placements=traits.support.placements,
            schedules=traits.support.schedules,
        )
        if not any(finding.rule in ("job.value", "job.model") for finding in values.findings):
            layout = Layout(
                context=context,
                strategy=strategy,
                places=values.places,
                assumes=(*assumes, *(("seq_len",) if _is_length_open(values, job) else ())),
            )
    return Completed(
        world=world,
        layout=layout,
        findings=tuple(values.findings),
        assumed=tuple(values.assumed),
    )


def _imbalance_fraction(job: Job) -> float:
    if not job.model.moe:
        return 0.0
    stated = job.imbalance_fraction
    return USUAL_IMBALANCE_FRACTION if stated is None else stated


def _mtp_layers(values: Values, job: Job, traits: FrameworkTraits) -> int:
    """Layers of multi-token prediction: the file's, else what the framework trains of the model."""
    stated = values.whole("mtp_layers", least=0, most=MAX_MTP_LAYERS)
    if stated is not None:
        return stated
    usual = usual_mtp_layers(job.model, traits)
    if usual:
        values.assumed.append(f"{usual} layer(s) of multi-token prediction, as the model has")
    return usual


def check_model(values: Values, job: Job) -> None:
    """Note every size that is not the model's, those that one word of the file chooses at once."""
    stated = values.reading.own_model
    if stated is not None:
        values.findings += unlike(stated, job.model, values.reading.path)
        values.assumed += stated.assumed if stated.spec is job.model else ()
        return
    wrong: dict[Place, list[str]] = {}
    shape = shape_of(job.model)
    for name, own in shape.items():
        given = values.whole(name, least=0, most=10**9)
        if given is not None and not _is_size(values, job, name, given, own):
            wrong.setdefault(values.places.of[name], []).append(name)
    for names in wrong.values():
        sizes = [
            f"{name.removeprefix('model.').replace('_', ' ')} of {job.model.name} is "
            f"{shape[name]}; given {values.given(name)}"
            for name in names
        ]
        more = f" (and {len(sizes) - 1} other sizes)" if len(sizes) > 1 else ""
        values.add("job.model", sizes[0] + more, names[0])


def _is_size(values: Values, job: Job, name: str, given: int, own: int) -> bool:
    """Whether a size is the model's; a vocabulary may be padded."""
    model, tp = job.model, values.given("tp")
    if name == "model.ffn_size" and model.moe and given == model.moe.expert_ffn_size:
        return True
    if name == "model.num_experts" and {given, own} == {0, 1}:
        return True
    padding = 128 * (tp if isinstance(tp, int) and tp > 0 else 1)
    return given == own or (name == "model.vocab_size" and own < given < own + padding)


def _seq_len(values: Values, job: Job) -> int:
    given = values.whole("seq_len", most=MAX_SEQ_LEN)
    longest = values.reading.longest
    if given is None and longest is not None:
        return _at_most(values, job, longest)
    if given is not None and job.seq_len is not None and given != job.seq_len:
        text = f"the file's sequences have {given} tokens; the job's have {job.seq_len}"
        values.add("job.seq_len", text, "seq_len")
    if given is None and job.seq_len is None:
        values.assumed.append(f"sequences of {usual_seq_len(job.model)} tokens")
    return given or job.seq_len or usual_seq_len(job.model)


def _at_most(values: Values, job: Job, longest: Value) -> int:
    """The job's length, or the most that the file allows."""
    most = min(int(longest.value), MAX_SEQ_LEN)
    if job.seq_len is not None and job.seq_len > most:
        text = f"sequences are cut to {most} tokens; the job's have {job.seq_len}"
        values.places = replace(values.places, of={**values.places.of, "seq_len": _place(longest)})
        values.add("job.seq_len", text, "seq_len")
    if job.seq_len is None:
        values.assumed.append(f"sequences of {most} tokens, the most {longest.key} allows")
    return job.seq_len or most


def _place(value: Value) -> Place:
    return Place(key=value.key, line=value.line)


def _precision(values: Values, job: Job) -> Precision | None:
    if values.given("precision") is None:
        usual = usual_precision(job.cluster.accelerator)
        values.assumed.append(usual)
        return usual
    word = values.word("precision", get_args(Precision), rule="job.precision")
    precision: Precision | None = word  # type: ignore[assignment]
    if precision is not None:
        try:
            peak_flops_per_s(job.cluster.accelerator, precision)
        except ValueError as error:
            values.add("job.precision", str(error), "precision")
            return None
    return precision


def _software(job: Job, framework: str) -> Software:
    """What the job says of a file's framework; InputError where it has no such profile."""
    said = job.software
    if said is None or said.framework not in ("", framework):
        return Software()
    problem = profile_problem(framework, said.profile)
    if problem:
        raise InputError.single("command line", "--profile", problem)
    return said


def _traits(values: Values, job: Job, framework: str, gpus: Gpus) -> FrameworkTraits:
    """The file's profile, the job's, or the first with the file's schedule and stages; optimizer.

    What the file states of single traits comes before the job's settings.
    """
    schedule, asked = values.given("schedule"), values.given("profile")
    sharding, said = values.given("zero_stage"), _software(job, framework)
    stages_of = attrgetter("frozen_zero_stages" if job.training.is_frozen else "zero_stages")
    first = [] if asked is None else [str(asked)]
    names = list(dict.fromkeys([*first, said.profile, CURRENT, *profile_names(framework)]))
    settings = (*values.reading.traits, *said.settings)
    profiles = (load_traits(framework, name, settings) for name in names)
    offering = (
        traits
        for traits in profiles
        if schedule in (None, *traits.support.schedules)
        and (gpus.degrees["pp"] == 1 or traits.support.pp)
        and (gpus.degrees["pp"] > 1 or sharding in (None, *stages_of(traits.support)))
    )
    traits = next(offering, load_traits(framework, names[0], settings))
    optimizer = values.word("optimizer", optimizer_names(framework), rule="job.optimizer")
    traits = traits if optimizer is None else with_optimizer(traits, optimizer)
    beside = values.word("expert_exchange", get_args(ExpertOverlap))
    if beside is not None:
        overlap = replace(traits.overlap, expert_all_to_all_overlap=beside)  # type: ignore[arg-type]
        traits = replace(traits, overlap=overlap)
    held = values.whole("gradient_bytes", least=2, most=4)
    if held is None or held == _held(traits.states, sharding):
        return traits
    states = replace(
        traits.states,
        gradient_bytes=held,
        gradient_reduce_bytes=held,
        zero2_gradient_bytes=0,
    )
    return replace(traits, states=states)


def _held(states: StateTraits, zero_stage: object) -> float | None:
    """Bytes of a gradient by the traits, where it is reduced as it is held."""
    if zero_stage in (2, 3) and states.zero2_gradient_bytes:
        return states.zero2_gradient_bytes
    held = states.gradient_bytes
    return held if held == states.gradient_reduce_bytes else None


def _trained(values: Values, job: Job, traits: FrameworkTraits) -> tuple[FrameworkTraits, str]:
    """The traits where what the job trains is trained, and why it is not priced, if it is not.

    A finding where another file asks for what cannot be trained.
    """
    reading = values.reading
    _, message = training_problem(
        job.model,
        job.training,
        traits.support.joined_families,
        joined=traits.kernels.joins_adapters,
    )
    try:
        if not message:
            return with_training(traits, job.training), reading.unpriced
    except InputError as error:
        message = error.problems[0].message
    if reading.training is not None:
        return traits, reading.unpriced or message
    values.add("job.value", message)
    return traits, reading.unpriced


def _with_modules(values: Values, traits: FrameworkTraits, strategy: Strategy) -> FrameworkTraits:
    if strategy.recompute_modules is None:
        return traits
    try:
        return with_recompute_modules(traits, strategy.recompute_modules)
    except InputError as error:
        values.add("job.value", error.problems[0].message, "recompute_modules")
        return traits


def _strategy(
    values: Values, job: Job, support: SupportTraits, gpus: Gpus, batch: Batch
) -> Strategy | None:
    """The strategy; None with more stages than layers, or where nothing says how states split."""
    num_layers, vpp = job.model.num_blocks, values.whole("vpp") or 1
    pp = gpus.degrees["pp"]
    if pp > num_layers:
        text = f"every stage needs a layer: {job.model.name} has {num_layers}; given {pp}"
        values.add("legality.pp_at_most_layers", text, "pp")
        return None
    layers = values.counts("layers_per_stage") or default_layers(num_layers, pp, vpp)
    stated = zip(POLICIES, POLICY_COUNT_FIELDS, strict=True)
    under = {policy: values.counts(name, layers, vpp) for policy, name in stated}
    counts = policy_counts(layers, {name: each for name, each in under.items() if each})
    if values.given("zero_stage") is None and (
        "zero_stage" in values.reading.decisions or min(support.zero_stages) > 0
    ):
        values.add("job.zero_stage", NO_STAGE, "zero_stage")
        return None
    ep = values.whole("ep") or 1
    known = {"dp": gpus.dp, **gpus.degrees, **vars(batch), "vpp": vpp, "ep": ep}
    known["etp"] = _expert_tensor_parallel(values, job, support, gpus.degrees["tp"], ep)
    must_shard = support.sequence_parallel and support.sequence_parallel_required
    usual = {
        **FIELD_DEFAULTS,
        "zero_stage": min(support.zero_stages),
        "sequence_parallel": gpus.degrees["tp"] > 1 and must_shard,
        "placement": support.placements[0],
    }
    columns: dict[str, Any] = {
        name: known[name] if name in known else values.of(name, decision, usual[name])
        for name, decision in STRATEGY_FIELDS.items()
    }
    return Strategy(
        **columns,
        **split_values(layers, counts),
        recompute_modules=values.words("recompute_modules"),
    )


_SCRIPTS = {
    "recompute": "nothing recomputed",
    "optimizer": "the optimizer adam",
    "zero_stage": "nothing sharded by the launcher",
}


def _left_to_script(values: Values) -> tuple[str, ...]:
    """What decides memory and is the training script's where the file does not say it."""
    is_stated = {
        "recompute": any(values.given(name) is not None for name in POLICY_COUNT_FIELDS),
        "optimizer": values.given("optimizer") is not None,
    }
    return tuple(name for name, stated in is_stated.items() if not stated)


def _is_length_open(values: Values, job: Job) -> bool:
    return job.seq_len is None and values.given("seq_len") is None


def _expert_tensor_parallel(
    values: Values, job: Job, support: SupportTraits, tp: int, ep: int
) -> int:
    """What the file says of experts; of a model without any it says nothing."""
    given = values.whole("etp") if job.model.moe else None
    return given or int(support.usual_etp(tp, ep))


def _world(
    reading: Reading,
    job: Job,
    gpus: Gpus,
    batch: Batch | None,
    seq_len: int,
    strategy: Strategy | None,
) -> World:
    """All that is known: the model's shape, what follows, and, first, what the file says."""
    known: dict[str, Any] = {**shape_of(job.model), "num_gpus": gpus.num_gpus, "seq_len": seq_len}
    known |= {**gpus.degrees, "model.family": job.model.family}
    if gpus.dp is not None:
        known["dp"] = gpus.dp
    if batch is not None:
        known |= vars(batch)
    if strategy is not None:
        known |= vars(strategy)
    known |= {
        name: each.value for name, each in reading.decisions.items() if each.value is not None
    }
    return World(
        num_gpus=gpus.num_gpus,
        decisions=known,
        compute_capability=job.cluster.accelerator.compute_capability,
        vendor=job.cluster.accelerator.vendor,
    )
