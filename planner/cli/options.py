"""Parameters of commands: those of a question from its table of options, and shared ones."""

import inspect
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from planner.catalog import EXAMPLE_NODE
from planner.cli.output import delayed_progress, show_as
from planner.errors import InputError, Problem
from planner.limits import MAX_GPUS
from planner.query.options import (
    FIXED,
    GROUPS,
    OPTIONS,
    OWN_DEFAULTS,
    PANELS,
    PLACES,
    Group,
    Option,
    options_of,
)
from planner.query.query import Query, read_options

if TYPE_CHECKING:
    from planner.report.document import Shown

# Commands that take a job; those that take files read the project's settings by themselves.
JOBS = ("plan", "explain", "size", "why", "emit", "export", "job", "sensitivity")


def is_given(context: typer.Context, name: str) -> bool:
    """Return True if an option comes from the command line, not from a default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def own_defaults() -> dict[str, Any]:
    """Defaults by option: PLANNER_FRAMEWORK and its like, else the settings file; InputError."""
    from planner.check.settings import settings_for

    settings = settings_for(Path.cwd() / "here")
    given = {
        name: os.environ.get(f"PLANNER_{name.upper()}") or getattr(settings, name)
        for name in OWN_DEFAULTS
    }
    return {name: value for name, value in given.items() if value is not None}


def known_models(incomplete: str) -> list[str]:
    """Models of the catalog that begin so."""
    from planner.catalog import list_models

    return [name for name in list_models() if name.startswith(incomplete.lower())]


def known_clusters(incomplete: str) -> list[str]:
    """Machines that begin so, and nodes and accelerators behind a count: ``16xdgx``."""
    from planner.catalog.hardware import list_names

    count, times, name = re.match(r"^([0-9]*)(x?)(.*)$", incomplete, re.DOTALL).groups()  # type: ignore[union-attr]
    if not count:
        return [each for each in list_names("clusters") if each.startswith(incomplete)]
    if not times:
        return [f"{count}x"]
    known = (*list_names("nodes"), *list_names("accelerators"))
    return [f"{count}x{each}" for each in known if each.startswith(name.lower())]


def known_frameworks(incomplete: str) -> list[str]:
    """Frameworks and formats of files that begin so."""
    from planner.formats.registry import format_names
    from planner.frameworks.registry import FRAMEWORKS

    known = dict.fromkeys((*FRAMEWORKS, *format_names(), "any"))
    return [name for name in known if name.startswith(incomplete.lower())]


PROGRAM: dict[str, Any] = {
    "context_settings": {"help_option_names": ["-h", "--help"]},
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
}
TABLE: tuple[str, ...] = ("table", "json")
CSV: tuple[str, ...] = (*TABLE, "csv")
HELP_ALL, FORM, PROGRESS = "help_all", "output_format", "progress"
NOT_SAID = ("query", FORM, PROGRESS)  # parameters of a command that are no options of its own
OWN_PANEL = "Options"  # those of the command itself
SHOWS_ALL = "planner.help_all"
# Options of commands themselves that only --help-all shows.
RARE = (
    *("space", "maximize", "top", "show_all", "launcher", "force", "search", "weak"),
    *("recompute_layers", "layers_per_stage", "offload_activations"),
)
# Groups of a command that asks for the fastest plan, whatever else may be best.
OF_THE_FASTEST: tuple[Group, ...] = ("job", "software", "layout", "narrowing")

NODES_OF_A_KIND = f"NODESxNODE such as 16x{EXAMPLE_NODE}"
Cluster = Annotated[
    str,
    typer.Argument(
        autocompletion=known_clusters,
        metavar="CLUSTER",
        help=f"{NODES_OF_A_KIND}, GPUSxACCELERATOR, or a YAML file.",
    ),
]


def _keyword(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:  # noqa: ANN401
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, annotation=annotation, default=default)


def _place(name: str, text: str, *, kind: Any = str, **more: Any) -> inspect.Parameter:  # noqa: ANN401
    """The argument that names a model or a cluster; it may be missing where its kind has None."""
    default = None if kind == str | None else inspect.Parameter.empty
    said = typer.Argument(
        autocompletion=known_models if name == "model" else known_clusters,
        help=text,
        **{"metavar": name.upper(), **more},
    )
    return _keyword(name, Annotated[kind, said], default)


MODEL = _place("model", "Model name (see `planner show models`), YAML file or config.json.")
PLAN_OR_MODEL = _place(
    "model",
    "Plan file of --save, folder of --emit; or a model, as `planner plan` takes it.",
    metavar="PLAN-OR-MODEL",
)
CLUSTER = _keyword("cluster", Cluster, inspect.Parameter.empty)
BESIDE_MODEL = _place(
    "cluster", "Beside a model: the cluster, as `planner plan` takes it.", kind=str | None
)
NODE = _place(
    "cluster",
    f"Node or accelerator such as {EXAMPLE_NODE}, or a YAML file; a count is ignored.",
)


class QuestionCommand(TyperCommand):
    """A command whose help shows its usual options; ``--help-all`` shows all."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401 - click's
        """Return the words of the line that says how it is called."""
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - click's
        """Write the arguments, the command's own options, then those of a question by panel."""
        panels: dict[str, list[tuple[str, str]]] = {
            title: [] for title in ("Arguments", OWN_PANEL, *PANELS.values())
        }
        for parameter in self.get_params(ctx):
            name = parameter.name or ""
            option, row = OPTIONS.get(name), parameter.get_help_record(ctx)
            is_usual = option.usual if option else name not in RARE
            if row is None or not (is_usual or SHOWS_ALL in ctx.meta):
                continue
            title = PANELS[option.of] if option else OWN_PANEL
            if parameter.param_type_name == "argument":
                title, row = "Arguments", (row[0].partition(" ")[0].strip("{}"), row[1])
            panels[title].append(row)
        for title, rows in panels.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _show_all(context: typer.Context, value: bool) -> None:
    if value:
        context.meta[SHOWS_ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


Command = Callable[..., "Shown | None"]
Program = Callable[..., None]


def takes(
    *groups: Group,
    refused: str = "",
    model: inspect.Parameter = MODEL,
    cluster: inspect.Parameter = CLUSTER,
    form: tuple[str, ...] = TABLE,
) -> Callable[[Command], Program]:
    """Make a command of a function of a question: what it returns is shown in the form asked for.

    ``query`` stands for ``model``, ``cluster`` and the options of ``groups`` (without any of all);
    others are hidden and ``refused``. ``ask`` of the command is the same from Python.
    """
    taken = options_of(groups or GROUPS)
    help_all = _keyword(
        HELP_ALL,
        Annotated[
            bool,
            typer.Option(
                "--help-all",
                callback=_show_all,
                is_eager=True,
                help="Show every option and exit; --help shows the usual ones.",
            ),
        ],
        default=False,
    )

    def decorate(command: Command) -> Program:
        own = inspect.signature(command).parameters
        others = [each for name, each in OPTIONS.items() if name not in own]
        asked = [model, cluster, *(_parameter(each, hidden=each not in taken) for each in others)]

        def ask(query: Query, **given: Any) -> "Shown | None":  # noqa: ANN401 - the command's own
            refuse(query, groups or GROUPS, refused)
            return _answered(command, query=query, **given)

        def read(context: typer.Context, given: dict[str, Any]) -> "Shown | None":
            said = {each.name: given.pop(each.name) for each in others}
            stated = {name: value for name, value in said.items() if is_given(context, name)}
            beneath = {name: value for name, value in said.items() if name not in stated}
            places = {name: given.pop(name) or "" for name in PLACES}
            # A file is a plan where no cluster stands beside it, whatever the project's own is.
            is_alone = model is PLAN_OR_MODEL and not is_given(context, "cluster")
            if is_alone and Path(places["model"]).exists():
                places["cluster"] = ""
            return ask(Query.of(**places, defaults=beneath, **stated), **given)

        return _program(command, ask, read, {"query": asked}, form, help_all)

    return decorate


def takes_files(
    *beside: str,
    form: tuple[str, ...] = TABLE,
) -> Callable[[Command], Program]:
    """The same of a function of files, with the options of OF_FILES and others ``beside``."""
    return shows(form, (*OF_FILES, *(OPTIONS[name] for name in beside)))


def shows(
    form: tuple[str, ...] = TABLE, taken: tuple[Option, ...] = ()
) -> Callable[[Command], Program]:
    """Make a command of a function of its own parameters; ``said`` maps the options ``taken``."""

    def decorate(command: Command) -> Program:
        def ask(**given: Any) -> "Shown | None":  # noqa: ANN401 - whichever option
            said = {each.name: given.pop(each.name, None) for each in taken}
            return _answered(command, said=read_options(taken, said), **given)

        asked = [_parameter(each, hidden=False) for each in taken]
        return _program(command, ask, lambda _, given: ask(**given), {"said": asked}, form)

    return decorate


def _answered(command: Command, **given: Any) -> "Shown | None":  # noqa: ANN401 - whichever option
    """What a command answers; how far it is stands on the screen where that takes long."""
    own = inspect.signature(command).parameters
    with delayed_progress() as progress:
        given |= {PROGRESS: progress}
        return command(**{name: value for name, value in given.items() if name in own})


def _program(
    command: Command,
    ask: Command,
    read: "Callable[[typer.Context, dict[str, Any]], Shown | None]",
    places: Mapping[str, list[inspect.Parameter]],
    form: tuple[str, ...],
    *last: inspect.Parameter,
) -> Program:
    """The program of a command: its parameters, others in the ``places`` of some of these."""

    @wraps(command)
    def run(context: typer.Context, **given: Any) -> None:  # noqa: ANN401 - whichever option
        given.pop(HELP_ALL, None)
        show_as(given.get(FORM, ""), read(context, given))

    parameters = [_keyword("context", typer.Context, inspect.Parameter.empty)]
    own = inspect.signature(command).parameters
    for name, each in own.items():
        usual = [] if name in NOT_SAID else [each.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
        parameters += places.get(name, usual)
    if form:
        said = typer.Option("--format", help="Output format.")
        last = (*last, _keyword(FORM, Annotated[Literal[form], said], form[0]))
    parameters += last
    run.__dict__ |= {
        "ask": ask,
        "own": [name for name in own if name not in NOT_SAID],
        "__signature__": inspect.Signature(parameters),
    }
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def refuse(query: Query, groups: tuple[Group, ...], why: str) -> None:
    """Raise InputError with every option that is of none of the groups."""
    taken = {each.name for each in options_of(groups)}
    others = {OPTIONS[name].flag: True for name in query.given if name not in taken}
    refuse_all(others, f"not taken here: {why}")


def refuse_all(values: Mapping[str, object], why: str) -> None:
    """Raise InputError with every option that has a value, where there is any."""
    InputError.check(
        Problem(where="command line", key=flag, message=why)
        for flag, value in values.items()
        if value is not None and value is not False and value != ""
    )


def _parameter(option: Option, *, hidden: bool) -> inspect.Parameter:
    """The parameter of an option: a text that the question reads, or a switch."""
    is_switch = option.kind is bool
    has_off = is_switch and option.name in FIXED
    metavar = option.metavar or {int: "<int>", float: "<float>", str: "TEXT"}.get(option.kind)
    said = typer.Option(
        f"{option.flag}/{option.off_flag}" if has_off else option.flag,
        help=option.help,
        metavar=None if is_switch else metavar,
        hidden=hidden,
        autocompletion=known_frameworks if option.name == "framework" else None,
        callback=_start_from if option.name == "like" else None,
        is_eager=option.name == "like",
    )
    kind: Any = list[str] if option.many else bool if is_switch else str
    return _keyword(option.name, Annotated[kind | None, said])


def _start_from(context: typer.Context, like: str | None) -> str | None:
    """Take model and cluster from what ``--like`` names; read before the others."""
    if like is not None:
        from planner.query.like import places_of

        context.default_map = {**(context.default_map or {}), **places_of(like)}
    return like


# What commands of files take of the job, where the file does not say it.
OF_FILES = (
    Option(name="model", of="job", help="Model name, YAML file or config.json."),
    Option(name="cluster", of="job", help=f"{NODES_OF_A_KIND}, or a YAML file."),
    replace(OPTIONS["framework"], help="Format of the file [auto: recognised]."),
    Option(
        name="gpus",
        of="job",
        kind=int,
        allowed=(1, MAX_GPUS),
        help="GPUs of the job [all of the cluster].",
    ),
    replace(OPTIONS["seq_len"], help="Tokens per sequence, such as 8k [the file's]."),
    replace(OPTIONS["global_batch"], help="Batch in sequences [the file's]."),
    OPTIONS["imbalance"],
    OPTIONS["host_memory"],
    replace(
        OPTIONS["profile"],
        help="Trait profile of the file's framework, for what the file does not say [current].",
    ),
    OPTIONS["settings"],
    Option(
        name="assume",
        of="job",
        many=True,
        metavar="NAME=VALUE",
        help="What a script, log or file decides: recompute=none|selective|full, optimizer, "
        "precision, micro_batch, zero_stage, tp, pp, cp, ep; repeatable.",
    ),
)
Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Show what the answer rests on and what was assumed."),
]
Force = Annotated[bool, typer.Option(help="Replace an existing file.")]
LauncherName = Annotated[
    str | None,
    typer.Option("--launcher", help="torchrun, slurm, kubernetes or skypilot [torchrun]."),
]
