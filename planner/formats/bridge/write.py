"""Puts a plan's decisions into a file of overrides, everything else as it was."""

import shlex

from planner.cost.context import Context
from planner.errors import ExpressError
from planner.formats.bridge.emit import overrides
from planner.formats.bridge.keys import CHECKPOINTS
from planner.formats.bridge.read import overrides_in
from planner.formats.format import SourceText
from planner.formats.megatron.table import FSDP_CHECKPOINTS
from planner.formats.shell.launched import KEPT, processes_edit
from planner.formats.shell.word import respelled
from planner.spec.strategy import Strategy


def write_into(source: SourceText, context: Context, strategy: Strategy) -> str:
    """The file with the strategy's decisions in it; raises ExpressError, InputError."""
    wanted = {key: f"{key}={value}" for key, value, _ in overrides(context, strategy)}
    given = overrides_in(source)
    held = [each for each in given.found if each.text.strip("'\"") == FSDP_CHECKPOINTS[1]]
    if CHECKPOINTS not in wanted and any(each.key == CHECKPOINTS for each in held):
        wanted[CHECKPOINTS] = f"{CHECKPOINTS}=torch_dist"
    found, launcher = given.found, given.launcher
    if given.is_kept:
        raise ExpressError(f"{source.path}: {KEPT}")
    edits = list(processes_edit(source, launcher, strategy.num_gpus))
    for each in found:
        if each.key not in wanted or each.word.text == wanted[each.key]:
            continue
        edit = respelled(each.word, wanted[each.key])
        if edit is None and each.word.site is not None:
            edit = (*each.word.site, shlex.quote(wanted[each.key]))
        if edit is None:
            raise ExpressError(_by_hand(source, [wanted[each.key]]))
        edits.append(edit)
    missing = [text for key, text in wanted.items() if key not in {each.key for each in found}]
    if missing:
        last, gap = found[-1].word, " " if launcher else "\n"
        is_held = last.site is None and any(shlex.quote(text) != text for text in missing)
        if last.place is None or is_held:
            raise ExpressError(_by_hand(source, missing))
        edits.append((last.end, last.end, "".join(f"{gap}{shlex.quote(m)}" for m in missing)))
    text, at = "", 0
    for start, end, new in sorted(edits):
        text, at = f"{text}{source.text[at:start]}{new}", end
    return text + source.text[at:]


def _by_hand(source: SourceText, texts: list[str]) -> str:
    """What to say where no edit is safe: the words, as a shell takes them."""
    words = " ".join(map(shlex.quote, texts))
    return f"{source.path}: overrides stand inside quotes or are put together; write there: {words}"
