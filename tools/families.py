"""What is wrong with the names in families.yaml: of keys, values, functions and model files."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from string import Formatter

from planner.catalog.figures import keys_of
from planner.catalog.hf.expressions import FUNCTIONS, WHEN
from planner.catalog.hf.family import Family
from planner.catalog.model_file import ExtraParams, ModelFile
from planner.errors import hint
from planner.expr import Language, faults, parsed
from planner.spec.model import Biases, MlaSpec, MoeSpec

SECTIONS: Mapping[str, type] = {
    "biases": Biases,
    "extra_params": ExtraParams,
    "extra_params_per_layer": ExtraParams,
    "mla": MlaSpec,
    "moe": MoeSpec,
}


def wrong_names(family: Family) -> Iterator[tuple[str, str]]:
    """Yield keys of a family and what is wrong there: names and keys that are not known."""
    known = ["class_name", *family.keys]
    for name, text in family.values.items():
        yield from wrong_expressions(text, known, f"values.{name}")
        if name in known:
            yield "values", f"{name} is a key, too"
        known.append(name)
    if family.windows:
        yield from wrong_expressions(family.windows.tokens, known, "windows.tokens")
        yield from wrong_expressions(family.windows.layers, [*known, "window"], "windows.layers")
        if "layer_types" not in family.keys:
            yield "windows", "needs layer_types among the keys"
    for section in ("refuse", "notes"):
        rows = family.model_dump()[section]
        yield from wrong_expressions(list(rows), known, section)
    yield from wrong_expressions(family.model, known, "model")
    yield from unknown_keys(family.aliases.values(), {*family.keys, *family.only}, "aliases")
    yield from unknown_keys(family.model, ModelFile.model_fields, "model")
    for section, model in SECTIONS.items():
        rows = family.model.get(section) or []
        for row in [rows] if isinstance(rows, Mapping) else rows:
            yield from unknown_keys(row, {*keys_of(model), WHEN}, f"model.{section}")


def unknown_keys(
    given: Iterable[str], known: Collection[str], key: str
) -> Iterator[tuple[str, str]]:
    """Yield the key where names stand, and which of them are not known."""
    for name in given:
        if name not in known:
            yield key, f"unknown key; given {name!r}, {hint(name, known)}"


def wrong_expressions(data: object, known: Collection[str], key: str) -> Iterator[tuple[str, str]]:
    """Yield the key and the fault of every expression in data that cannot be computed."""
    if isinstance(data, Mapping):
        for inner, value in data.items():
            yield from wrong_expressions(value, known, f"{key}.{inner}")
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from wrong_expressions(value, known, f"{key}.{index}")
    elif isinstance(data, str):
        braces = (field for _, field, _, _ in Formatter().parse(data) if field)
        texts = [data[1:]] if data.startswith("=") else braces
        for text in texts:
            try:
                wrong = list(faults(parsed(text), Language(functions=FUNCTIONS), known))
            except ValueError as error:
                wrong = [str(error)]
            yield from ((key, f"{fault}; given {text!r}") for fault in wrong)
