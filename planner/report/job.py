"""Report on what a whole job takes, in words and as JSON."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from planner.answers.job import FAILING_GPUS, FAILURES, Job, JobAssumptions
from planner.answers.row import Row, property_row, row_from
from planner.answers.rows import InputsRow, PlanRow
from planner.notes import Note
from planner.query.objectives import ENERGY_INCLUDES
from planner.query.resolve import Case
from planner.report.table import pairs, show
from planner.report.words import inputs_line, layout_words, mfu_text, note_lines, question_lines
from planner.units import GB, TERA, format_count, format_days, format_energy, format_seconds, plural


def _decimal(num_bytes: float) -> str:
    """Bytes as storage is sold: 5.68 TB, 9 GB."""
    units = (("PB", 1e15), ("TB", TERA), ("GB", GB), ("MB", 1e6))
    unit, size = next((each for each in units if num_bytes >= each[1]), ("kB", 1e3))
    return f"{num_bytes / size:.3g} {unit}"


def _rows(job: Job) -> dict[str, str]:
    terms, accelerator = job.terms, job.node.accelerator
    llama3 = f" (Llama 3's: {FAILURES:.0f} in 54 days on {FAILING_GPUS:,.0f} GPUs)"
    number, failing = job.num_failures, "" if terms.node_mtbf_s else llama3
    expected = f"{number:,.0f}" if number >= 10.0 else f"{number:.2g}"
    taken = "in the background, a pause of" if terms.is_async else "a pause of"
    chosen = "as given" if terms.interval_s else "Daly's best"
    iterations = plural(job.interval_iterations, "iteration")
    # A failure also costs the work since the last checkpoint, half an interval in the mean.
    lost_s = job.lost_s + (job.interval_s + job.stop_s) / 2.0
    rate = min(job.storage_bytes_per_s, job.num_nodes * job.node_bytes_per_s)
    given = "" if terms.storage_bytes_per_s else ", Llama 3's per GPU"
    limit = "the nodes" if rate < job.storage_bytes_per_s else f"the file system{given}"
    energy = (
        f"unknown: no power figure of {accelerator.name} is known (tdp_w)"
        if job.energy_kwh is None
        else f"{format_energy(job.energy_kwh)}: {accelerator.tdp_w:g} W a GPU all the time"
    )
    rows = {
        "work": f"{format_seconds(job.useful_s)} of iterations ({format_seconds(job.iteration_s)} "
        f"each, MFU {mfu_text(job.plan)}); checkpoints and failures leave "
        f"{job.goodput:.1%} of the time for them (goodput)",
        "failures": f"{expected} expected, one every {format_seconds(job.mtbf_s)}: a node "
        f"fails every {format_days(job.node_mtbf_s)} days{failing}",
        "checkpoints": f"{_decimal(job.checkpoint_bytes)}, {taken} {format_seconds(job.stop_s)} "
        f"every {format_seconds(job.interval_s)} ({iterations}, {chosen})",
        "writing": f"{format_seconds(job.write_s)} at {_decimal(rate)}/s ({limit}); a failure "
        f"costs {format_seconds(lost_s)}: {format_seconds(job.lost_s)} to restart, and lost work",
        "energy": energy,
        "input": f"{_decimal(job.input_bytes_per_s)}/s of {job.token_bytes}-byte tokens, "
        f"{_decimal(job.total_tokens * job.token_bytes)} in all",
    }
    if job.learning_rates is not None:
        low, high = sorted(job.learning_rates)
        hint = "hint: DeepSeek's and Step Law, of AdamW"
        rows["learning rate"] = f"try peaks of {low:.1e} to {high:.1e} ({hint})"
    return rows


def _grounds(job: Job) -> Iterator[str]:
    weights, master, states = job.bytes_per_param
    yield f"Plan: {layout_words(job.plan)}."
    yield (
        f"A checkpoint has {format_count(job.saved_params)} parameters of {weights:g} bytes in "
        f"weights, {master:g} in a master copy and {states:.3g} in optimizer states."
    )
    daly = format_seconds(job.daly_s)
    yield f"Interval by Daly {daly}; elapsed over useful time {job.factor:.4f}."
    per_node = _decimal(job.node_bytes_per_s)
    yield f"A node writes at most {per_node}/s: its ports, or its GPUs' links to the host."
    yield f"Energy: {ENERGY_INCLUDES}."
    yield (
        "Left out: evaluation, loss spikes, planned stops, slow nodes, and waiting for nodes; "
        "failures come at one rate, and nodes are replaced at once."
    )


def print_job(job: Job, notes: Sequence[Note], console: Console, *, verbose: bool) -> None:
    """The verdict first; ``verbose``: what it rests on."""
    context, cost = job.plan.context, job.cost_usd
    inputs = f"{inputs_line([context], notes)}: {format_count(job.total_tokens)} tokens"
    price = "" if cost is None else f", {format_count(cost)} USD"
    verdict = (
        f"{format_seconds(job.elapsed_s)} on {job.num_gpus:,} {job.node.accelerator.name}: "
        f"{format_count(job.gpu_hours)} GPU-hours{price}."
    )
    more = Text("-v adds the plan, what a checkpoint holds, and what is left out.", "dim")
    show(
        console,
        *question_lines(inputs, notes),
        Text(verdict, "bold"),
        pairs(_rows(job).items()),
        Text() if verbose else more,
        *(_grounds(job) if verbose else ()),
        *(note_lines(notes, assumed=True) if verbose else ()),
    )


@property_row(Job, leave_out=("node",))
class JobDocument(Row):
    """What a whole job takes, and what its figures rest on."""

    inputs: InputsRow
    terms: JobAssumptions
    plan: PlanRow


def job_document(job: Job, notes: Sequence[Note]) -> JobDocument:
    """The answer as a document, in base units."""
    return row_from(
        JobDocument,
        job,
        inputs=InputsRow.of(Case(contexts=(job.plan.context,), notes=tuple(notes))),
        plan=PlanRow.of(job.plan),
    )
