"""Parameters of commands: those of a question from its table of options, and shared ones."""

import inspect
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import wraps
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from planner.catalog.paths import EXAMPLE_NODE
from planner.cli import completion
from planner.cli.defaults import is_given
from planner.limits import MAX_BATCH, MAX_GPUS, MAX_SEQ_LEN
from planner.query.options import FIXED, GROUPS, OPTIONS, PANELS, PLACES, Group, Option, options_of
from planner.query.query import Query
from planner.query.words import length

COMPLETED = {"framework": completion.frameworks}
"""What the shell offers for a value."""
HELP_ALL = "help_all"
OWN_PANEL = "Options"  # those of the command itself
SHOWS_ALL = "planner.help_all"
OF_THE_FASTEST: tuple[Group, ...] = ("job", "software", "layout", "narrowing")
"""Groups of a command that asks for the fastest plan, whatever else may be best."""


NODES_OF_A_KIND = f"NODESxNODE such as 16x{EXAMPLE_NODE}"
Model = Annotated[
    str,
    typer.Argument(
        autocompletion=completion.models,
        help="Model name (see `planner show models`), YAML file or config.json.",
    ),
]
Cluster = Annotated[
    str,
    typer.Argument(
        autocompletion=completion.clusters,
        help=f"{NODES_OF_A_KIND}, GPUSxACCELERATOR, or a YAML file.",
    ),
]
BesideModel = Annotated[
    str | None,
    typer.Argument(
        autocompletion=completion.clusters,
        help="Beside a model: the cluster, as `planner plan` takes it.",
    ),
]
NodeOrAccelerator = Annotated[
    str,
    typer.Argument(
        help=f"Node or accelerator such as {EXAMPLE_NODE}, or a YAML file; a count is ignored."
    ),
]
PlanOrModel = Annotated[
    str,
    typer.Argument(
        metavar="PLAN-OR-MODEL",
        autocompletion=completion.models,
        help="Plan file of --save, folder of --emit; or a model, as `planner plan` takes it.",
    ),
]


class QuestionCommand(TyperCommand):
    """A command whose help shows the usual options of a question; ``--help-all`` shows all."""

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - click's
        """Write the command's own options, then those of a question by panel."""
        panels: dict[str, list[tuple[str, str]]] = {
            title: [] for title in (OWN_PANEL, *PANELS.values())
        }
        for parameter in self.get_params(ctx):
            option = OPTIONS.get(parameter.name or "")
            row = parameter.get_help_record(ctx)
            if row is None or (option and not option.usual and SHOWS_ALL not in ctx.meta):
                continue
            panels[PANELS[option.of] if option else OWN_PANEL].append(row)
        for title, rows in panels.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _show_all(context: typer.Context, value: bool) -> None:
    if value:
        context.meta[SHOWS_ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


def takes(
    *groups: Group,
    refused: str = "",
    model: Any = Model,  # noqa: ANN401 - a type
    cluster: Any = Cluster,  # noqa: ANN401 - a type
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command model, cluster and options where it has its parameter ``query``, a Query.

    The options are those of ``groups``, without any of all; others are hidden and refused, and
    ``refused`` says why. ``model`` and ``cluster`` are the annotations of the two arguments.
    """
    taken = options_of(groups or GROUPS)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters
        others = [each for name, each in OPTIONS.items() if name not in own]
        shown = [_parameter(each, hidden=each not in taken) for each in others]
        places = [_parameter_of("model", model), _parameter_of("cluster", cluster)]
        placed = [[*places, *shown] if name == "query" else [own[name]] for name in own]
        extra = [] if "context" in own else [_parameter_of("context", typer.Context)]
        parameters = [*extra, *(each for those in placed for each in those), _HELP_ALL]
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [each.replace(kind=kind) for each in parameters]

        @wraps(command)
        def run(**given: Any) -> None:  # noqa: ANN401 - of whichever option
            context: typer.Context = given["context"]
            if extra:
                del given["context"]
            del given[HELP_ALL]
            said = {each.name: given.pop(each.name) for each in others}
            query = query_of(context, {name: given.pop(name) for name in PLACES}, said)
            refuse(query, groups or GROUPS, refused)
            command(query=query, **given)

        run.__dict__["__signature__"] = inspect.Signature(parameters)
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def query_of(context: typer.Context, places: Mapping[str, Any], said: Mapping[str, Any]) -> Query:
    """Return the question that a command's parameters state, a project's defaults beneath."""
    given = {name: value for name, value in said.items() if is_given(context, name)}
    beneath = {name: value for name, value in said.items() if name not in given}
    model, cluster = (places.get(name) or "" for name in PLACES)
    return Query.of(str(model), str(cluster), defaults=beneath, **given)


def refuse(query: Query, groups: tuple[Group, ...], why: str) -> None:
    """Raise InputError with every option that is of none of the groups."""
    from planner.errors import InputError, Problem

    taken = {each.name for each in options_of(groups)}
    problems = [
        Problem(where="command line", key=OPTIONS[name].flag, message=f"not taken here: {why}")
        for name in query.given
        if name not in taken
    ]
    if problems:
        raise InputError(problems)


def _parameter_of(name: str, annotation: Any) -> inspect.Parameter:  # noqa: ANN401 - a type
    kind = inspect.Parameter.KEYWORD_ONLY
    default = None if annotation is BesideModel else inspect.Parameter.empty
    return inspect.Parameter(name, kind, annotation=annotation, default=default)


def _parameter(option: Option, *, hidden: bool) -> inspect.Parameter:
    """The parameter of an option: a text that the question reads, or a switch."""
    is_switch = option.kind is bool
    names = [option.flag]
    if is_switch and option.name in FIXED:
        names = [f"{option.flag}/{option.off_flag}"]
    metavar = option.metavar or {int: "<int>", float: "<float>", str: "TEXT"}.get(option.kind)
    said = typer.Option(
        *names,
        help=option.help,
        metavar=None if is_switch else metavar,
        hidden=hidden,
        autocompletion=COMPLETED.get(option.name),
        callback=_start_from if option.name == "like" else None,
        is_eager=option.name == "like",
    )
    kind: Any = list[str] if option.many else bool if is_switch else str
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, said],
    )


def _start_from(context: typer.Context, like: str | None) -> str | None:
    """Take model and cluster from what ``--like`` names; read before the others."""
    if like is not None:
        from planner.query.like import places_of

        context.default_map = {**(context.default_map or {}), **places_of(like)}
    return like


_HELP_ALL = inspect.Parameter(
    HELP_ALL,
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option(
            "--help-all",
            callback=_show_all,
            is_eager=True,
            help="Show every option and exit; --help shows the usual ones.",
        ),
    ],
)


def length_of_file(text: str) -> int:
    """Read a length of 1 to MAX_SEQ_LEN tokens."""
    try:
        tokens = length(str(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if not 1 <= tokens <= MAX_SEQ_LEN:
        raise typer.BadParameter(f"{tokens} is not in the range 1<=x<={MAX_SEQ_LEN}.")
    return tokens


class TableOrJson(StrEnum):
    """Output formats of commands with one table form."""

    table = "table"
    json = "json"


class TreeOrJson(StrEnum):
    """Output formats of commands with trees."""

    tree = "tree"
    json = "json"


class FilesOrJson(StrEnum):
    """Output formats of commands that write files."""

    files = "files"
    json = "json"


HostMemory = Annotated[str | None, typer.Option(metavar="SIZE", help=OPTIONS["host_memory"].help)]
FileProfile = Annotated[
    str | None,
    typer.Option(
        help="Trait profile of the file's framework, for what the file does not say [current]."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar=OPTIONS["settings"].metavar, help=OPTIONS["settings"].help),
]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Show what the answer rests on and what was assumed."),
]
Imbalance = Annotated[float | None, typer.Option(help=OPTIONS["imbalance"].help)]
Documents = Annotated[str | None, typer.Option(metavar="KIND:MEAN", help=OPTIONS["documents"].help)]
TimeLimit = Annotated[str | None, typer.Option(metavar="SECONDS", help=OPTIONS["time_limit"].help)]
FileFormat = Annotated[
    str | None, typer.Option("--framework", help="Format of the file [auto: recognised].")
]
JobGpus = Annotated[
    int | None,
    typer.Option("--gpus", min=1, max=MAX_GPUS, help="GPUs of the job [all of the cluster]."),
]
FileSeqLen = Annotated[
    int | None,
    typer.Option(
        "--seq-len",
        parser=length_of_file,
        metavar="<int>",
        help="Tokens per sequence, such as 8k [the file's].",
    ),
]
FileGlobalBatch = Annotated[
    int | None,
    typer.Option("--global-batch", min=1, max=MAX_BATCH, help="Batch in sequences [the file's]."),
]
Force = Annotated[bool, typer.Option(help="Replace an existing file.")]
LauncherName = Annotated[
    str | None,
    typer.Option("--launcher", help="torchrun, slurm, kubernetes or skypilot [torchrun]."),
]
OutputFormat = Annotated[TableOrJson, typer.Option("--format", help="Output format.")]
TreeFormat = Annotated[TreeOrJson, typer.Option("--format", help="Output format.")]
FilesFormat = Annotated[FilesOrJson, typer.Option("--format", help="Output format.")]
