"""Lists frameworks with their profiles, and one profile with the source of every trait."""

from dataclasses import asdict
from operator import itemgetter
from typing import Any

from rich.console import Console

from planner.answers.software import differences, phrases, shown_value
from planner.catalog.paths import unknown_name
from planner.errors import InputError
from planner.frameworks.registry import (
    CURRENT,
    FRAMEWORKS,
    load_traits,
    profile_names,
    profile_title,
    trait_figures,
)
from planner.query.traits import RECOMPUTE, profile_problem
from planner.report.table import Column, Table, rich_table


def print_frameworks(console: Console) -> None:
    """Every profile: what it stands for, and what it assumes otherwise than ``current``."""
    rows = []
    for framework in FRAMEWORKS:
        for profile in profile_names(framework):
            about = profile_title(framework, profile)
            other = "" if profile == CURRENT else "; ".join(differences(framework, profile))
            rows.append((framework, profile, f"{about.title}: {about.versions}", other))
    columns: list[Column[tuple[str, ...]]] = [
        Column("framework", itemgetter(0), right=False),
        Column("profile", itemgetter(1), right=False, wraps=True),
        Column("stands for", itemgetter(2), right=False, wraps=True),
        Column("differs from current in", itemgetter(3), right=False, wraps=True),
    ]
    console.print(rich_table(Table(rows, columns)))
    console.print("`planner frameworks FRAMEWORK/PROFILE` shows every trait with its source.")


def _split(name: str) -> tuple[str, str]:
    """Read ``FRAMEWORK`` or ``FRAMEWORK/PROFILE``; raises InputError."""
    framework, _, profile = name.partition("/")
    if framework not in FRAMEWORKS:
        raise unknown_name(
            "framework", framework, FRAMEWORKS, "frameworks", name, "planner frameworks"
        )
    problem = profile_problem(framework, profile or CURRENT)
    if problem:
        raise InputError.single("frameworks", name, problem)
    return framework, profile or CURRENT


def frameworks_body() -> dict[str, Any]:
    """Every profile as plain data."""
    rows = [
        {
            "framework": framework,
            "profile": profile,
            **asdict(profile_title(framework, profile)),
            "differs_from_current": ([] if profile == CURRENT else differences(framework, profile)),
        }
        for framework in FRAMEWORKS
        for profile in profile_names(framework)
    ]
    return {"profiles": rows}


def framework_body(name: str) -> dict[str, Any]:
    """One profile as plain data."""
    framework, profile = _split(name)
    traits = load_traits(framework, profile)
    usual = trait_figures(framework)
    return {
        "framework": framework,
        "profile": profile,
        **asdict(profile_title(framework, profile)),
        "software": phrases(traits),
        "traits": [
            {
                "name": f"traits.{section}.{trait}",
                "value": figure["value"],
                "current": usual[section][trait]["value"],
                "source": figure["source"],
            }
            for section, figures in trait_figures(framework, profile).items()
            if section != RECOMPUTE
            for trait, figure in figures.items()
        ],
        "recompute_modules": [module.name for module in traits.recompute.modules],
        "selected_modules": list(traits.recompute.selected),
    }


def print_framework(name: str, console: Console) -> None:
    """One profile: what it stands for, what it assumes, every trait with its source."""
    framework, profile = _split(name)
    about = profile_title(framework, profile)
    console.print(f"{framework}, profile {profile}: {about.title}", style="bold", markup=False)
    console.print(about.versions, markup=False)
    traits = load_traits(framework, profile)
    console.print(f"assumes {', '.join(phrases(traits).values())}\n", markup=False)
    usual = trait_figures(framework)
    for section, figures in trait_figures(framework, profile).items():
        if section == RECOMPUTE:
            continue
        for trait, figure in figures.items():
            value, before = (shown_value(f["value"]) for f in (figure, usual[section][trait]))
            note = "" if value == before else f"  ({CURRENT}: {before})"
            console.print(f"traits.{section}.{trait}={value}{note}", markup=False)
            console.print(f"    {figure['source']}", style="dim", markup=False, soft_wrap=True)
    modules = [module.name for module in traits.recompute.modules]
    chosen = ", ".join(traits.recompute.selected)
    console.print(f"recompute modules: {', '.join(modules)} (selected: {chosen})", markup=False)
