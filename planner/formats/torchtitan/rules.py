"""Rules of torchtitan's words: those of ``rules.yaml``, and what no condition says."""

from collections import Counter

from planner.documents.tree import load_own
from planner.formats.format import CheckContext, FormatRule, listed
from planner.formats.settings import Refused, Rules, Settings, Violations
from planner.formats.torchtitan import keys as key
from planner.formats.torchtitan.keys import (
    DEGREES,
    FIRST_LESS,
    LAST_LESS,
    PARTS,
    SHARD,
    TorchtitanView,
    filled,
)
from planner.formats.torchtitan.read import RELEASE

_PARTS = "torchtitan/distributed/pipeline_parallel.py"


def of_release(settings: Settings, world: CheckContext) -> TorchtitanView | None:
    """Return the view of a file of this release for rules; None for older ones."""
    return None if RELEASE in settings else TorchtitanView(settings=filled(settings), world=world)


def of_pipeline(settings: Settings, world: CheckContext) -> TorchtitanView | None:
    """Return the view of a file of this release with several stages; None for others."""
    file = of_release(settings, world)
    return file if file and file.pp > 1 else None


rule, pipelined = Rules(of_release), Rules(of_pipeline)
_TABLES = load_own(__package__, "rules.yaml")
rule.add_table(_TABLES["whole"])
pipelined.add_table(_TABLES["pipeline"])


@rule("torchtitan/distributed/parallel_dims.py")
def degrees_make_world(file: TorchtitanView) -> Violations:
    """Replicas x shards x cp x tp x pp are the processes."""
    # All degrees but that of experts, which are taken from the others.
    names = [name for name in DEGREES.values() if name != DEGREES["ep"]]
    is_stated = all(file.settings[name].line for name in (SHARD, *names))
    is_known = file.config.is_known or is_stated
    shards, others, wanted = file.shards, file.others, file.num_gpus
    if is_known and others > 0 and file[SHARD] != 0 and shards * others != wanted:
        # Shards of -1 take what the others leave.
        place = SHARD if file[SHARD] > 0 else max(names, key=lambda name: file[name])
        given = f"{shards} shards x {others} of the other degrees = {shards * others}"
        yield place, f"{given}; needs {wanted} processes"


@pipelined(_PARTS, FIRST_LESS)
def stage_weights_fit(file: TorchtitanView) -> Refused:
    """Embedding and head weigh no more layers than a model part has, and every part has some."""
    layers, parts = file.decided("model.num_layers"), file.parts
    first, last = file[FIRST_LESS], file[LAST_LESS]
    is_computed = layers and parts and file[PARTS] is None
    given = f"{parts} model parts of {layers} layers, embedding {first} and head {last}"
    is_refused = is_computed and key.default_counts(layers, parts, first, last) is None
    return {f"{given}; a part needs a layer and its weight": is_refused}


@pipelined.unenforced(f"not checked: {_PARTS} keeps the layers it is told", PARTS)
def parts_hold_all_layers(file: TorchtitanView) -> Refused:
    """Every layer stands in one model part; torchtitan drops those that are missing."""
    layers = file.decided("model.num_layers")
    counts = Counter[int]()
    for part in file[PARTS] or ():
        counts.update(key.layers_in(part))
    wrong = [layer for layer in range(layers) if counts[layer] != 1]
    wrong += [layer for layer in counts if layer >= layers]
    names = listed([f"layers.{layer}" for layer in wrong])
    message = f"{names} not in exactly one part; the model has layers.0 to {layers - 1}"
    return {message: file[PARTS] is not None and layers and wrong}


@pipelined.unenforced(f"not checked: {_PARTS}, fails in the first step", PARTS)
def parts_hold_both_ends(file: TorchtitanView) -> Refused:
    """The first model part holds the embedding, the last one the norm and the head."""
    parts = file[PARTS]
    if not parts:
        return {}
    return {
        "tok_embeddings is not in the first part; it must be": "tok_embeddings" not in parts[0],
        "norm is not in the last part; it must be": "norm" not in parts[-1],
        "lm_head is not in the last part; it must be": "lm_head" not in parts[-1],
    }


RULES: tuple[FormatRule, ...] = (*rule, *pipelined)
