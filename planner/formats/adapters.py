"""Parts of a training script outside its file: PEFT's adapters, Liger's loss.

The file of adapters says what PEFT trains and how transformers loads what stays frozen.

``LoraConfig(**file["lora"])``; for 4 bits ``BitsAndBytesConfig(**file["quantization"])``.
"""

import json
from collections.abc import Iterator
from typing import Any

from planner.cost.context import Context
from planner.documents.tree import parsed_object
from planner.errors import InputError, Problem
from planner.formats.decision import writes
from planner.formats.format import OutputFile, SourceText
from planner.layers.adapter_targets import joined_ops
from planner.spec.training import (
    ALL_LINEAR,
    MAX_RANK,
    MODULES,
    TARGET_GROUPS,
    TARGETS,
    WHOLE,
    Target,
    Training,
    in_order,
    read_targets,
)
from planner.spec.traits import Setting

FILE = "adapter.json"
# What is no module with adapters: stacked weights of experts, and what is trained whole.
_BESIDE = {
    "target_parameters": {
        "expert_up": "mlp.experts.gate_up_proj",
        "expert_down": "mlp.experts.down_proj",
    },
    "modules_to_save": {"embedding": "embed_tokens", "head": "lm_head"},
}
_NF4 = {
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
}


def unnamed_targets(context: Context) -> Iterator[str]:
    """Say which targets have names of their own in a model's code, which no plan knows."""
    training, model = context.traits.training, context.model
    # Q, K and V have one name in all of transformers' models with projections of their own.
    special = set(training.targets) - {"q", "k", "v"} and not model.gated_mlp
    is_joined = bool(joined_ops(model.family, context.traits.kernels))
    if training.is_frozen and training.targets != TARGETS and (special or is_joined):
        yield (
            f"--lora-targets {','.join(training.targets)}: {model.name} calls them "
            f"otherwise; allowed is {ALL_LINEAR}"
        )


def adapter_files(context: Context) -> tuple[OutputFile, ...]:
    """The file that goes with a plan; none where all weights are trained."""
    training = context.traits.training
    if not training.is_frozen:
        return ()
    is_mixtral = context.model.family in ("mixtral", "minimax-m2")
    own = {"gate": "w1", "up": "w3", "down": "w2"} if is_mixtral else {}
    inside = [target for target in training.targets if target in MODULES]
    names = [own.get(target, target if "_" in target else f"{target}_proj") for target in inside]
    beside = {
        key: [known[target] for target in training.targets if target in known]
        for key, known in _BESIDE.items()
    }
    content: dict[str, Any] = {
        "lora": {
            "task_type": "CAUSAL_LM",
            "r": training.rank,
            "lora_alpha": 2 * training.rank,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": ALL_LINEAR if "router" in inside else names,
            **{key: named for key, named in beside.items() if named},
        }
    }
    if training.mode == "qlora":
        dtype = {"bf16": "bfloat16", "fp16": "float16"}[context.job.precision]
        types = dict.fromkeys(("bnb_4bit_compute_dtype", "bnb_4bit_quant_storage"), dtype)
        content["quantization"] = _NF4 | types
    return (OutputFile(name=FILE, text=json.dumps(content, indent=2) + "\n"),)


# What the training script does with the file, for the README.
ADAPTER_LINES = writes(
    {
        "training script: from_pretrained(..., dtype='auto', "
        "quantization_config=BitsAndBytesConfig(**...))": (
            f"'{FILE}: quantization' if traits.training.mode == 'qlora' else None",
            "frozen linear layers are stored in 4 bits",
        ),
        "training script: get_peft_model(model, LoraConfig(**...))": (
            f"'{FILE}: lora' if traits.training.is_frozen else None",
            "{traits.training.words}; lora_alpha and lora_dropout are yours",
        ),
    }
)


def read_adapters(source: SourceText) -> Training:
    """Return what a file says is trained; raise InputError with all that is wrong with it.

    ``lora_dropout`` is read over: what it keeps is not counted.
    """
    content = parsed_object(source.path, source.text).value
    lora = content.get("lora")
    lora = lora if isinstance(lora, dict) else {}
    rank = lora.get("r")
    places = {"target_parameters": TARGET_GROUPS["experts"], "modules_to_save": WHOLE}
    read = {key: _targets(lora[key], inside) for key, inside in places.items() if lora.get(key)}
    modules = lora.get("target_modules")
    if modules or "target_parameters" not in read:
        read["target_modules"] = _targets(modules, MODULES)
    of_rank = f"must be a whole number from 1 to {MAX_RANK:,}; given {rank!r}"
    # None, or as it is written here: plans price no other quantisation.
    small = content.get("quantization")
    stated = small if isinstance(small, dict) else {}
    is_priced = not small or all(stated.get(key) == value for key, value in _NF4.items())
    nf4 = ", ".join(f"{key} {value}".lower() for key, value in _NF4.items())
    # Arguments of LoraConfig after which more, or something else, is trained.
    beyond = ("use_dora", "lora_bias", "rank_pattern")
    wrong = {
        "lora.r": "" if type(rank) is int and 1 <= rank <= MAX_RANK else of_rank,
        **{f"lora.{key}": unknown for key, (_, unknown) in read.items()},
        **{f"lora.{key}": f"not modelled; given {lora[key]!r}" for key in beyond if lora.get(key)},
        "quantization": "" if is_priced else f"plans price {nf4}; given {small!r}",
    }
    InputError.check(
        Problem(where=source.path, key=key, message=message[:300])
        for key, message in wrong.items()
        if message
    )
    targets = {target for found, _ in read.values() for target in found}
    return Training(
        mode="qlora" if small else "lora",
        rank=rank or 0,
        targets=in_order(targets),
    )


def _targets(given: object, allowed: tuple[Target, ...]) -> tuple[tuple[Target, ...], str]:
    """Read the targets in a list of projections; second, what is wrong with them."""
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not names:
        return (), f"{ALL_LINEAR}, or a list of projections, is needed; given {given!r}"
    try:
        found = read_targets(",".join(map(str, names)))
        wrong = f"allowed are modules of {', '.join(allowed)}; given {names!r}"
        return found, "" if {*found} <= {*allowed} else wrong
    except ValueError as error:
        return (), str(error)


# Head and cross-entropy in chunks of tokens, the head's gradient made in forward.
LIGER: tuple[Setting, ...] = (
    ("kernels.loss", "liger"),
    ("states.collected_head_gradient_bytes", 2.0),
)

# Of a script whose file has no key for Liger's loss.
LIGER_LINES = writes(
    {
        "training script: AutoLigerKernelForCausalLM.from_pretrained(...)": (
            "'in place of AutoModelForCausalLM' if traits.kernels.loss == 'liger' else None",
            "head and loss in one, as the plan assumes",
        )
    }
)
