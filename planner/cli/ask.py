"""A question about plans: its words read with all their problems, then answered."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypedDict, Unpack

from planner.answers.deadline import Deadline
from planner.cli.aims import check_aim, read_aim, read_time_limit
from planner.cli.collector import Collector
from planner.cli.formats import expressible, format_meant
from planner.cli.inputs import margin_notes, read_question, with_host_memory, with_placement
from planner.cli.narrowing import narrowing_of, offering
from planner.plans.objectives import Aim
from planner.plans.plan import Answer, answer
from planner.plans.tight import with_room
from planner.search.search import Progress
from planner.search.space.narrow import Narrowing

if TYPE_CHECKING:
    from planner.cost.context import Context
    from planner.errors import NothingFitsError
    from planner.formats.format import Format


class Options(TypedDict, total=False):
    """What a question may say beside model and cluster, as ``planner plan --help`` describes it."""

    framework: str | None
    profile: str
    settings: Sequence[str] | None
    global_batch: int | None
    global_batch_tokens: str | None
    seq_len: int | None
    tokens: str | None
    optimizer: str
    train: str
    lora_rank: int | None
    lora_targets: str | None
    recompute_modules: str | None
    placement: str | None
    precision: str | None
    schedule: Sequence[str] | None
    limit: Sequence[str] | None
    where: Sequence[str] | None
    allow: Sequence[str] | None
    forbid: Sequence[str] | None
    objective: str
    deadline: str | None
    min_tokens_per_s: str | None
    budget: str | None
    pareto: str | None
    time_limit: str | None
    host_memory: str | None
    margin: float | None
    imbalance: float | None
    documents: str | None
    mtp_layers: int | None


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question that was read: what to search, for what, and what was assumed."""

    contexts: "tuple[Context, ...]"
    narrowing: Narrowing
    aim: Aim
    notes: tuple[str, ...]
    time_limit_s: float | None
    keeps_margin: bool
    """The user chose the margin, so no plan inside it is taken."""
    made: "Format | None" = None
    """The format of files whose space it is, where one was asked for."""

    def answered(self, top: int, progress: Progress = lambda _message, _fraction: None) -> Answer:
        """Search, and raise where there is nothing to show: nothing fits, or not in time."""
        deadline = Deadline(self.time_limit_s)
        found = self.searched(top, deadline, progress)
        if found.plans or found.frontier:
            return found
        if deadline.limit_s is not None and not found.is_complete:
            raise deadline.nothing_found()
        from planner.answers.nothing_fits import nothing_fits
        from planner.answers.whatif import Case

        case = Case(contexts=found.contexts, narrowing=self.narrowing)
        raise nothing_fits(case, found, deadline)

    def searched(
        self,
        top: int,
        deadline: Deadline,
        progress: Progress = lambda _message, _fraction: None,
    ) -> Answer:
        """Search; what is found may be nothing, and nobody asks why."""
        ask = partial(
            answer,
            top=top,
            notes=self.notes,
            narrowing=self.narrowing,
            aim=self.aim,
            deadline=deadline,
            progress=progress,
        )
        return with_room(ask, self.contexts, is_given=self.keeps_margin)

    def nothing_in_time(self) -> "NothingFitsError":
        """What to raise where the time was over before anything was found."""
        return Deadline(self.time_limit_s).nothing_found()


def unmet_limits(found: Answer) -> "NothingFitsError":
    """Say which limits no plan keeps, and the nearest that can be kept."""
    from planner.answers.size import unmet
    from planner.report.sizing_words import no_size

    return no_size(unmet(found))


def read(
    model: str,
    cluster: str,
    *,
    collector: Collector | None = None,
    made: "Format | None" = None,
    fix: Sequence[str] | None = None,
    **options: Unpack[Options],
) -> Asked:
    """Read a question; raises one InputError with every problem.

    ``collector`` may hold problems of other options; ``made`` is the format of files asked for,
    whose framework and space it then is.
    """
    collector = collector or Collector()
    cluster = with_host_memory(collector, cluster, options.get("host_memory"))
    schedule, placement, margin = (
        options.get("schedule"),
        options.get("placement"),
        options.get("margin"),
    )
    narrowing = narrowing_of(
        collector,
        fix=fix,
        limit=options.get("limit"),
        where=options.get("where"),
        allow=options.get("allow"),
        forbid=options.get("forbid"),
        schedule=schedule,
        placement=placement,
    )
    aim = read_aim(
        collector,
        objective=options.get("objective") or "time",
        pareto=options.get("pareto") or "",
        tokens=options.get("tokens"),
        deadline=options.get("deadline"),
        min_tokens_per_s=options.get("min_tokens_per_s"),
        budget=options.get("budget"),
    )
    time_limit_s = read_time_limit(collector, options.get("time_limit"))
    framework = options.get("framework")
    meant = format_meant(framework)
    framework = meant.framework if meant else framework
    made = made or meant
    train = options.get("train") or "full"
    question = read_question(
        collector=collector,
        model=model,
        cluster=cluster,
        framework=framework or (made.framework if made else None),
        profile=options.get("profile") or "current",
        settings=options.get("settings") or (),
        precision=options.get("precision"),
        optimizer=options.get("optimizer") or "adam",
        training=(train, options.get("lora_rank"), options.get("lora_targets")),
        recompute_modules=options.get("recompute_modules"),
        schedules=schedule,
        global_batch=options.get("global_batch"),
        global_batch_tokens=options.get("global_batch_tokens"),
        seq_len=options.get("seq_len"),
        tokens=options.get("tokens"),
        margin_percent=margin,
        imbalance_percent=options.get("imbalance"),
        documents=options.get("documents"),
        mtp_layers=options.get("mtp_layers"),
    )
    check_aim(aim, question.contexts[0].cluster)
    question = expressible(question, made)
    question = offering(question, narrowing)
    contexts = with_placement(question.contexts, placement)
    return Asked(
        contexts=contexts,
        narrowing=narrowing,
        aim=aim,
        notes=(*question.notes, *margin_notes(contexts, given=margin is not None)),
        time_limit_s=time_limit_s,
        keeps_margin=margin is not None,
        made=made,
    )
