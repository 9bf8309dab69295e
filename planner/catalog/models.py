"""Models by name or by file: ``models/*.yaml`` and files of the same shape.

A JSON file, or a folder, is read as a Hugging Face config (:mod:`planner.catalog.hf`).

A file must give num_layers, hidden_size, num_heads, vocab_size and max_seq_len. :func:`to_spec`
fills in what follows from them; the rest is a plain GPT block: layernorms, an ungated gelu MLP, no
biases, rotary positions, an untied head.
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from planner.catalog import list_models, models_dir
from planner.catalog.model_file import ModelKeys, read_model
from planner.documents.file import is_file, is_folder
from planner.documents.tree import load_trusted, load_yaml
from planner.errors import InputError, did_you_mean
from planner.limits import name_of
from planner.spec.model import ModelSpec
from planner.units import format_count

_CONFIG_SUFFIX = ".json"
_SUFFIXES = (".yaml", ".yml", _CONFIG_SUFFIX)
Named = TypeVar("Named")


@dataclass(frozen=True, kw_only=True)
class ModelDetails:
    """A model with all its file says: counts, extras, positions and provenance."""

    spec: ModelSpec
    path: Path
    file: ModelKeys
    notes: tuple[str, ...] = ()  # how a config of another program was understood
    left_out: tuple[str, ...] = ()  # parts of the checkpoint, with their sizes


def model_file(name: str) -> Path:
    """Return the path of a catalog model; an unknown name raises with the nearest ones."""
    path = models_dir() / f"{name}.yaml"
    if Path(name).name == name and is_file(path):
        return path
    if missing := _missing_layers(name):
        message = f"the catalog cannot express its layers: {missing['layers']} are not modelled"
        message += f"; {_nearest_in_size(missing['billions'], is_mixture=missing['is_mixture'])}"
    else:
        message = f"unknown model {name!r}; {_known_instead(name)}"
    raise InputError.single("models", name, message)


def _known_instead(name: str) -> str:
    """Hint for an unknown model: similar names of the same size, else the model nearest in size."""
    size, alike = _billions(name), list_models()
    if size is not None:
        sizes = {known: _billions(known) or _stated_billions(known) for known in alike}
        # names round; who writes 9b may mean 8b, but not 70b
        alike = [known for known in sizes if abs(sizes[known] / size - 1.0) <= 0.15]
    told = [known for known in alike if known.endswith(f"-{name.lower()}")]
    # A size alone is, in most mouths, that of a Llama.
    if hint := did_you_mean(f"llama3.1-{name}" if told else name, told or alike):
        return hint
    if size is None:
        return f"{len(alike)} are known; `planner show models` lists them"
    # A mixture says how much of it is active: a3b.
    return _nearest_in_size(size, is_mixture=bool(re.search(r"-a[0-9]", name.lower())))


def _nearest_in_size(billions: float, *, is_mixture: bool) -> str:
    """Hint that names the model nearest in size; for a mixture the nearest mixture."""
    distance = {
        name: abs(math.log(_stated_billions(name) / billions))
        for name in list_models()
        if not is_mixture or "moe" in load_trusted(models_dir() / f"{name}.yaml")
    }
    return f"the nearest in size is {min(distance, key=distance.__getitem__)}"


def _stated_billions(name: str) -> float:
    return float(load_trusted(models_dir() / f"{name}.yaml")["params_expected"]) / 1e9


def _billions(name: str) -> float | None:
    """Billions of parameters stated in a model's name; None if none are."""
    # 70b of llama3-70b, 30b of qwen3-30b-a3b, not its active a3b; 7b1 is 7b.
    size = r"(?<![a-z0-9.])([0-9]{1,4}(?:\.[0-9]{1,3})?)([mbt])[0-9]?(?![a-z0-9])"
    said = re.search(size, name.lower())
    billions = {"m": 1e-3, "b": 1.0, "t": 1e3}
    return float(said[1]) * billions[said[2]] or None if said else None


def load_model(argument: str | Path) -> ModelSpec:
    """Return the model of this catalog name, YAML file, ``config.json`` or folder with one."""
    return load_model_details(argument).spec


def load_model_details(argument: str | Path) -> ModelDetails:
    """Return the model of this name or file with all its file says.

    A name that is not the catalog's is what the catalog has under that name elsewhere
    (:func:`meant_name`), or what the hub's cache on this machine holds. Raises InputError with
    every problem of the file.
    """
    name = meant_name(argument)
    path = model_file(name) if name else given_path(argument)
    if name is None and (path.suffix.lower() == _CONFIG_SUFFIX or is_folder(path)):
        from planner.catalog.hf.reader import read_config

        return read_config(path)
    file = read_model(load_trusted(path) if name else load_yaml(path), str(path))
    return ModelDetails(
        spec=to_spec(file, file.name or name_of(path.stem)),
        path=path,
        file=file,
        notes=(f"{argument} is read as {name}",) if name and name != argument else (),
        left_out=tuple(f"{part.name}, {format_count(part.count)}" for part in file.left_out),
    )


def meant_name(argument: str | Path) -> str | None:
    """The catalog's name that an argument means; None of files, which come first, and others."""
    if isinstance(argument, Path):
        return None
    if argument in list_models():
        return argument
    is_there = is_file(argument) or is_folder(argument)
    is_name = _is_hub_name(argument) and not argument.lower().endswith(_SUFFIXES)
    return catalog_name(argument) if is_name and not is_there else None


def given_path(argument: str | Path) -> Path:
    """The file or folder that an argument means which is no name of the catalog.

    Raises InputError with the nearest names where it is none, or of a hub and not on this machine.
    """
    path = Path(argument)
    if isinstance(argument, Path):
        return path
    if not is_model_file(argument):
        return model_file(argument)
    is_path = path.suffix.lower() in _SUFFIXES or is_file(path) or is_folder(path)
    if is_path or "/" not in argument or not _is_hub_name(argument):
        return path
    if _missing_layers(argument):
        return model_file(argument)
    found = cached_config(argument)
    if found is None:
        message = (
            f"neither a file, nor known, nor in the hub's cache: `hf download {argument} "
            f"config.json`, then the same command; {_known_instead(path.name)}"
        )
        raise InputError.single(argument, "file", message)
    return found


def is_model_file(argument: str | Path) -> bool:
    """Return True if a model argument is a file or a folder; names of the catalog come first."""
    if isinstance(argument, Path):
        return True
    if meant_name(argument):
        return False
    is_path = "/" in argument or "\\" in argument or argument.lower().endswith(_SUFFIXES)
    return is_path or is_folder(Path(argument))


def _is_hub_name(argument: str) -> bool:
    """Return True if it reads as ``name`` or ``owner/name``, not as a path."""
    parts = argument.split("/")
    return len(parts) <= 2 and all(parts) and parts[0] not in (".", "..", "~")


def to_spec(file: ModelKeys, name: str) -> ModelSpec:
    """Return the model of a file, what is left out filled in."""
    given = vars(file)
    same = {each.name: given[each.name] for each in fields(ModelSpec)}
    is_pair = given["architecture"] == "encoder-decoder"
    num_learned = file.num_learned_positions or given["max_seq_len"]
    head_dim, mla, moe = file.hidden_size // file.num_heads, given["mla"], given["moe"]
    if mla:
        head_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    if moe and not moe.shared_ffn_size:
        moe = replace(moe, shared_ffn_size=moe.num_shared_experts * moe.expert_ffn_size)
    other: dict[str, Any] = {
        "name": name,
        "num_decoder_layers": (file.num_decoder_layers or file.num_layers) if is_pair else 0,
        "num_kv_heads": file.num_kv_heads or file.num_heads,
        "head_dim": file.head_dim or head_dim,
        "ffn_size": file.ffn_size or 4 * file.hidden_size,
        "num_learned_positions": num_learned if given["position"] == "learned" else 0,
        "moe": moe,
        "extra_params": sum(extra.count for extra in file.extra_params),
        "extra_params_per_layer": sum(extra.count for extra in file.extra_params_per_layer),
    }
    return ModelSpec(**(same | other))


def catalog_name(name: str) -> str | None:
    """The only model of the catalog that a name can mean; None where there is none.

    ``meta-llama/Llama-3.1-8B-Instruct`` is llama3.1-8b: the owner, case, hyphens, blanks and the
    ending of a checkpoint do not count.
    """
    own = {plain(known): known for known in list_models()}
    return _meant_by(name, {**own, **_spellings("hugging_face.yaml")})


def _meant_by(name: str, known: Mapping[str, Named]) -> Named | None:
    """Look up a name without owner, case, hyphens and the endings of checkpoints."""
    # of a checkpoint's training, date and storage, which leave the architecture as it is
    ending = (
        "-(instruct|chat|base|hf|it|sft|dpo|v[01]\\.[0-9]|[0-9]{4}|bf16|fp8|full|pt|thinking|think|1m"
        "|reasoning|reasoning-plus|preview|terminus|speciale|awq|gptq-int[48]|bnb-4bit|(nv|mx)fp4)$"
    )
    text = name.rstrip("/").rpartition("/")[2].lower().removeprefix("meta-")
    while plain(text) not in known:
        shorter = re.sub(ending, "", text)
        if shorter == text:
            return None
        text = shorter
    return known[plain(text)]


@cache
def _spellings(file: str) -> Mapping[str, Any]:
    """Load a file of the catalog's ``names`` folder, keyed by plain names."""
    return {plain(name): said for name, said in load_trusted(models_dir() / "names" / file).items()}


def _missing_layers(name: str) -> Mapping[str, Any] | None:
    """Layers and size of a model known by name only because its layers are not modelled."""
    return _meant_by(name, _spellings("not_modelled.yaml"))


def plain(name: str) -> str:
    """Return a name in lower case, without hyphens and blanks."""
    return re.sub(r"[-_ ]", "", name.lower())


def cached_config(name: str) -> Path | None:
    """The newest ``config.json`` of ``owner/name`` in the hub's cache on this machine.

    Nothing is fetched. Source: huggingface_hub, constants.py and file_download.py
    (``models--owner--name/snapshots/REVISION``).
    """
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    folder = cache / f"models--{name.replace('/', '--')}" / "snapshots"
    # The hub's names have at most 96 characters; a file system refuses much longer ones.
    found = list(folder.glob("*/config.json")) if len(name) <= 96 else []
    return max(found, key=lambda path: path.stat().st_mtime, default=None)
