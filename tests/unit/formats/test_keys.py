"""Keys of formats: on the pages of the documentation, known, and of one release."""

from pathlib import Path

import pytest

from planner.documents.schema import entry_of
from planner.documents.tree import load_own
from planner.expr import Language, Names, faults, names_in, parsed
from planner.formats.accelerate import mapping as accelerate
from planner.formats.accelerate.rows import Section
from planner.formats.bridge.mapping import is_known
from planner.formats.decision import UNCHANGED
from planner.formats.deepspeed.decisions import TABLE
from planner.formats.deepspeed.keys import SCRIPT, schema
from planner.formats.format import SourceText
from planner.formats.megatron.options import load_options
from planner.formats.megatron.view import MegatronView
from planner.formats.registry import format_names, load_format, own_texts
from planner.formats.settings import FUNCTIONS
from planner.formats.trainer import mapping as trainer
from planner.formats.trainer.keys import WHOLE, known, replaced

PAGES = Path(__file__).resolve().parents[3] / "docs" / "formats"


# Bridge's rules are those of Megatron-LM.
@pytest.mark.parametrize("name", [name for name in format_names() if name != "bridge"])
def test_every_rule_says_what_must_hold_and_where_that_is_known_from(name: str) -> None:
    assert all(rule.check.__doc__ and rule.source for rule in load_format(name).rules)


@pytest.mark.parametrize("sections", [accelerate.SECTIONS, trainer.SECTIONS])
def test_every_key_that_carries_a_decision_is_on_the_page(sections: tuple[Section, ...]) -> None:
    page = (PAGES / "hugging-face.md").read_text(encoding="utf-8")
    rows = [row for section in sections for row in section.table]
    owned = {key for row in rows for key in row.keys if row.off.get(key) is not UNCHANGED}
    assert owned
    assert [key for key in sorted(owned) if key.rpartition(".")[2] not in page] == []


def test_keys_of_deepspeeds_decisions_are_known_and_those_for_the_script_explained() -> None:
    page = (PAGES / "deepspeed.md").read_text(encoding="utf-8")
    assert all(f"`{key}`" in page for key in schema()["properties"][SCRIPT]["properties"])
    keys = [key for row in TABLE for key in row.keys if "params" not in key]
    assert keys
    assert all(entry_of(schema(), tuple(key.split("."))) is not None for key in keys)


def test_no_old_key_of_trainer_is_known_and_what_replaces_one_is() -> None:
    assert not set(replaced()) & set(known())
    named = {words.split()[0].strip(",") for words in replaced().values() if words}
    for name in named - {"variable"}:
        assert name.partition(".")[0] in known()


@pytest.mark.parametrize("key", WHOLE)
def test_a_whole_number_with_a_point_ends_a_training(key: str) -> None:
    for value, message in (("2.0", "given 2.0, which stays so; "), ("2", None), ("2.5", "")):
        source = SourceText(path="t.json", text=f'{{"{key}": {value}}}')
        found = [each.message for each in load_format("trainer").read(source).findings]
        assert len(found) == (message is not None)
        assert not message or found == [f"{message}a whole number is allowed"]


def test_tables_of_megatron_and_bridge_name_what_there_is() -> None:
    table = load_own("planner.formats.megatron", "rules.yaml")
    shared = table.pop("names")
    own = {"key": "", "given": None, "is_given": False}
    file = Names(MegatronView(settings={}).named, FUNCTIONS, shared, **own)
    for entry in table.values():
        for text, condition in entry["wrong"].items():
            tree = parsed(condition)
            names = [name for name in names_in(tree) if name not in FUNCTIONS]
            assert not list(faults(tree, Language(functions=FUNCTIONS), names))
            assert file.filled(text)
            assert [file[name] for name in names]
    assert own_texts("not_priced", "megatron").keys() <= load_options().keys()
    assert all(map(is_known, own_texts("not_priced", "bridge")))
