"""Megatron-LM's YAML files (``--yaml-cfg``): the same settings by attribute, in three sections.

Source: megatron/training/yaml_arguments.py.
"""

from collections.abc import Iterator
from dataclasses import replace

from planner.documents.yaml_text import Node, compose
from planner.errors import InputError
from planner.formats.finding import Finding, Severity
from planner.formats.format import SourceText, Value
from planner.formats.megatron.options import (
    Option,
    SettingValue,
    field_names,
    options_by_dest,
    typed,
)
from planner.formats.settings import finding_at
from planner.spelling import did_you_mean

SECTIONS = ("language_model", "model_parallel")
ALIASES = {
    "num_moe_experts": "num_experts",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
}


def is_yaml_config(text: str) -> bool:
    """Whether a text has Megatron's YAML sections at its left margin."""
    return all(f"\n{name}:" in f"\n{text}" for name in SECTIONS)


def read_yaml(source: SourceText) -> tuple[dict[str, Value], list[Finding]]:
    """Settings by option and findings; raises InputError where the text is no YAML mapping."""
    settings: dict[str, Value] = {}
    findings: list[Finding] = []
    seen: set[str] = set()
    for key, node, line in _pairs(_root(source), depth=0):
        if key in seen:
            findings.append(_finding(source, key, line, "duplicate_key", "given again", "warning"))
        seen.add(key)
        attribute = key.rpartition(".")[2]
        option = options_by_dest().get(ALIASES.get(attribute, attribute))
        if option is None:
            if attribute not in field_names():
                hint = did_you_mean(attribute[:100], {*options_by_dest(), *field_names()})
                message = f"unknown key, which Megatron ignores; {hint}"
                findings.append(_finding(source, key, line, "unknown_key", message))
            continue
        try:
            value = _value(option, node)
        except ValueError as error:
            findings.append(_finding(source, key, line, "bad_value", str(error)))
            continue
        if value is not None:
            settings[option.name] = Value(value=value, key=key, line=line)
    _group_queries(settings)
    return settings, findings


def _group_queries(settings: dict[str, Value]) -> None:
    """Here the number of groups alone groups queries: no flag is asked."""
    groups = settings.get("--num-query-groups")
    settings.pop("--group-query-attention", None)
    if groups is not None and "--multi-latent-attention" not in settings:
        settings["--group-query-attention"] = replace(groups, value=True)


def _root(source: SourceText) -> Node:
    node = compose(source.path, source.text)
    if node is None or node.kind != "mapping":
        raise InputError.single(source.path, "line 1", "must be a mapping")
    return node


def _pairs(node: Node, depth: int) -> Iterator[tuple[str, Node, int]]:
    for key, item in node.pairs:
        name = key.resolved.text if key.resolved.kind == "scalar" else "?"
        value = item.resolved
        if depth == 0 and name in SECTIONS and value.kind == "mapping":
            yield from ((f"{name}.{k}", v, at) for k, v, at in _pairs(value, depth=1))
        else:
            yield name, value, key.line


def _value(option: Option, node: Node) -> SettingValue | None:
    """None where the file leaves the option as it is."""
    if node.kind == "sequence":
        words = [_text(item.resolved) for item in node.items]
        return typed(option, words) if option.nargs else typed(option, [str(words)])
    text = _text(node)
    if text.lower() in ("null", "none", "~", ""):
        return None
    if option.takes_values:
        return typed(option, text.split() if option.nargs else [text])
    if text.lower() not in ("true", "false"):
        raise ValueError(f"must be true or false; given {text[:60]!r}")
    is_true = text.lower() == "true"
    return True if is_true == (option.kind != "off") else None


def _text(node: Node) -> str:
    if node.kind != "scalar":
        raise ValueError("must be one value")
    return node.text


def _finding(
    source: SourceText, key: str, line: int, rule: str, message: str, severity: Severity = "error"
) -> Finding:
    place = Value(value=None, key=key[:120], line=line)
    return finding_at(f"megatron.{rule}", source.path, place, message, severity)
