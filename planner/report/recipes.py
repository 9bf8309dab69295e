"""A vendor's recipe's place in an answer, for the terminal and as JSON."""

from planner.answers.recipe import Placed
from planner.answers.rows import RecipeRow
from planner.query.like import recipe_gpus
from planner.units import GIB, format_bytes

# A recipe slower than the first row by more is shown under its own software, too.
FAR_FRACTION = 0.05


def _standing(found: Placed) -> str:
    """Where the layout stands."""
    if found.problem:
        return f"not possible here: {found.problem}"
    assert found.estimate is not None
    software = f"{found.recipe.source.framework} {found.recipe.source.profile}"
    if found.missing_bytes:
        tail = f", but fits under {software}, its own software" if found.fits_its_own else ""
        return f"does not fit here: needs {format_bytes(found.missing_bytes)} more{tail}"
    memory, tail = found.estimate.memory, ""
    if memory.peak_bytes > memory.usable_bytes:
        free = found.context.cluster.accelerator.hbm_bytes - memory.peak_bytes
        tail = f", with {free / GIB:.1f} GiB free, less than the margin"
    slower = found.slower_fraction
    change = "" if slower is None else f", {100.0 * slower:+.1f} %"
    row = f"row {found.row}" if found.row else "not among the rows"
    own = found.own_slower_fraction
    if slower is not None and own is not None and slower > FAR_FRACTION and found.fits_its_own:
        tail += f" ({100.0 * own:+.1f} % under {software} and its runtime)"
    return f"{row}{change}{tail}"


def placed_line(found: Placed) -> str:
    """What a vendor ships for the model and accelerator, and what the model thinks of it here."""
    recipe = found.recipe
    gpus = f"{recipe_gpus(recipe)} {recipe.accelerator.upper()}"
    other: list[str] = [] if recipe.task == "pretrain" else [recipe.task]
    other += [] if recipe.precision == found.context.job.precision else [recipe.precision]
    if recipe.global_batch != found.context.job.global_batch:
        other.append(f"batch {recipe.global_batch}")
    terms = f" ({', '.join(other)})" if other else ""
    return f"{recipe.source.vendor} ships {recipe.summary} for {gpus}{terms}: {_standing(found)}."


def recipe_row(found: Placed) -> RecipeRow:
    """The same as a row."""
    made = found.estimate
    return RecipeRow(
        recipe=found.recipe.recipe,
        source=found.recipe.source.title,
        layout=found.recipe.layout,
        iter_time_s=made.iter_time_s if made else None,
        peak_bytes=made.memory.peak_bytes if made else None,
        missing_bytes=found.missing_bytes,
        fits_its_own_software=found.fits_its_own,
        problem=found.problem or None,
        row=found.row,
        slower_fraction=found.slower_fraction,
        own_iter_time_s=found.own.iter_time_s if found.own else None,
        own_slower_fraction=found.own_slower_fraction,
    )
