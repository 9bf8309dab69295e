"""Every table of kept tensors loads, states its sources, and reacts to fp8 as it should."""

from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from typing import Any, get_args

import pytest

from planner.frameworks.registry import (
    FRAMEWORKS,
    load_saved_tables,
    load_traits,
    profile_names,
    saved_figures,
    trait_figures,
)
from planner.spec.saved import Condition, SavedTensorSpec, Width
from planner.spec.traits import traits_at_precision

PROFILES = [(name, profile) for name in FRAMEWORKS for profile in profile_names(name)]
FILES = sorted(
    entry.name.removesuffix(".yaml")
    for entry in resources.files("planner.frameworks").joinpath("saved").iterdir()
    if entry.name.endswith(".yaml")
)
TABLES = [name for name in FILES if name != "losses"]
KEYS = {"width", "bytes", "source", "multiple", "linear_input", "when", "freed", "fp8_bytes"}


def leaves(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Entries of a table file with their dotted paths, at whatever depth."""
    for name, child in node.items():
        where = f"{path}.{name}".lstrip(".")
        if isinstance(child, dict) and "width" in child:
            yield where, child
        elif isinstance(child, dict):
            yield from leaves(child, where)
        else:
            assert name == "extends", where


@pytest.mark.parametrize("name", FILES)
def test_every_entry_has_a_source_a_known_width_and_positive_bytes(name: str) -> None:
    found = dict(leaves(saved_figures(name)))
    assert found or "extends" in saved_figures(name)
    for where, figure in found.items():
        assert set(figure) <= KEYS, where
        assert isinstance(figure["source"], str), where
        assert figure["source"].strip(), where
        assert figure["width"] in get_args(Width), where
        assert figure.get("when", "always") in get_args(Condition), where
        assert 0 < figure["bytes"] + figure.get("fp8_bytes", 0) <= 8, where
        assert figure.get("multiple", 1) > 0, where


@pytest.mark.parametrize(("framework", "profile"), PROFILES)
def test_tables_of_every_profile_hold_its_attention_norms_and_loss(
    framework: str, profile: str
) -> None:
    kernels = load_traits(framework, profile).kernels
    figures = trait_figures(framework, profile)["kernels"]
    assert kernels.saved.name == figures["saved"]["value"]
    core = "unfused" if kernels.attention == "unfused" else "flash"
    for section in ("qkv", "attention_output", f"attention_core.{core}", "loss"):
        assert kernels.saved.entries(section), section
    assert kernels.saved.entries("norm.rmsnorm") or kernels.saved.entries("norm.layernorm")
    assert kernels.saved.entries("mlp.gated") or kernels.saved.entries("mlp.plain")


def test_the_loss_is_laid_beside_the_table() -> None:
    assert {load_traits(*pair).kernels.loss for pair in PROFILES} <= set(saved_figures("losses"))
    # Softmax in fp32 beside 16-bit logits: 6 bytes a logit; fused: 2.
    for loss, expected in (("vocab_parallel", 6.0), ("fused", 2.0)):
        tables = load_saved_tables("transformer_engine", loss)
        entries = tables.entries("loss")
        assert sum(entry.element_bytes * entry.multiple for entry in entries) == expected
        assert {entry.width for entry in entries} == {"logits"}
        assert tables.entries("no.such.section") == ()


@pytest.mark.parametrize("name", [name for name in TABLES if "extends" in saved_figures(name)])
def test_a_table_replaces_whole_sections_of_the_one_it_extends(name: str) -> None:
    own = saved_figures(name)
    parent = load_saved_tables(own["extends"], "fused").sections
    merged = load_saved_tables(name, "fused").sections
    replaced = {path.rpartition(".")[0] for path, _ in leaves(own)}
    assert replaced or len(own) > 1
    for section, entries in parent.items():
        if section not in replaced and merged[section]:
            assert merged[section] == entries, section
    for section in replaced:
        listed = {
            path.rpartition(".")[2] for path, _ in leaves(own) if path.rpartition(".")[0] == section
        }
        assert {entry.name for entry in merged[section]} == listed, section


@pytest.mark.parametrize(("framework", "profile"), PROFILES)
def test_fp8_narrows_inputs_of_linear_layers_and_nothing_else(framework: str, profile: str) -> None:
    traits = load_traits(framework, profile)
    narrow = 1.0 if traits.kernels.linears == "transformer_engine" else 2.0
    before = traits.kernels.saved.sections
    after = traits_at_precision(traits, "fp8").kernels.saved.sections
    assert before.keys() == after.keys()

    def expected(entry: SavedTensorSpec) -> SavedTensorSpec:
        if entry.fp8_bytes is not None:
            return replace(entry, element_bytes=entry.fp8_bytes)
        return replace(entry, element_bytes=narrow) if entry.is_linear_input else entry

    for section, entries in before.items():
        assert after[section] == tuple(expected(entry) for entry in entries), section


def test_fp8_halves_what_megatrons_linear_layers_keep_but_not_the_heads() -> None:
    sections = traits_at_precision(load_traits("megatron"), "fp8").kernels.saved.sections
    widths = {entry.name: entry.element_bytes for entry in sections["mlp.gated"]}
    assert widths["gate"] == widths["up"] == 2.0
    assert widths["product"] == 1.0
    assert {entry.element_bytes for entry in sections["head"]} == {2.0}


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_sixteen_bits_leave_the_tables_as_they_are(precision: Any) -> None:
    traits = load_traits("megatron")
    assert traits_at_precision(traits, precision) is traits
