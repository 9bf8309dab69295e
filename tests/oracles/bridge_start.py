"""The start of a Megatron-Bridge training without a GPU: its own recipes, overrides and validation.

Run as a program, with the folder that holds Megatron-Core as argument, it answers JSON lines
(``starts.py``). The stages are those of Bridge's run_recipe.py: the recipe by its name,
its overrides, and what a start makes of them before any process talks to another (precision,
overlap, ``ConfigContainer.validate`` with Megatron's own configuration in it).

What differs from a start: packages for GPUs, for other data and for images are pretended, and a
model's ``config.json`` is one of tests/examples, not the hub's.
"""

import sys
from abc import ABCMeta
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from io import StringIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

from megatron_model import prepare
from megatron_start import FusedAdam, count_decoders, set_machine, zero_stage
from starts import serve_starts

BRIDGE = Path(__file__).resolve().parents[2] / ".oracles" / "bridge"
PRETENDED = (
    "datasets",
    "megatron.bridge.diffusion",
    "megatron.energon",
    "modelopt",
    "transformer_engine",
    "wandb",
)
FAMILIES = ("deepseek", "gemma", "glm", "gpt.h100", "gpt_oss", "llama", "nemotronh", "qwen")
"""Recipes for text; the package beside them also imports those for images."""


@dataclass(frozen=True, kw_only=True)
class RecipeStart:
    """What stands behind run_recipe.py, and where it runs."""

    recipe: str
    overrides: list[str]
    config: str  # the folder with the model's config.json, for recipes that ask the hub for it
    num_gpus: int
    environment: dict[str, str] = field(default_factory=dict)
    generation: str = "hopper"


class Anything(ABCMeta):
    """A class that has every attribute, can be called, decorated with and inherited from."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class Stand(metaclass=Anything):
    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __init_subclass__(cls, **_: Any) -> None:
        pass


class Pretended(ModuleType):
    __path__: ClassVar[list[str]] = []
    __version__ = "2.14.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Stand


class Finder(MetaPathFinder, Loader):
    """Makes every module of the packages pretended."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if f"{name}.".startswith(tuple(f"{package}." for package in PRETENDED)):
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Pretended(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def reach_bridge() -> None:
    """Bridge beside a Megatron-Core that is prepared already."""
    if str(BRIDGE) not in sys.path:
        sys.path.insert(0, str(BRIDGE))
        sys.meta_path.insert(0, Finder())


def adapter_class() -> Any:
    """Bridge's LoRA, for layers that are Megatron-Core's own."""
    reach_bridge()
    import_module("megatron.bridge.peft.utils").HAVE_TE = False
    return import_module("megatron.bridge.peft.lora").LoRA


def import_bridge(megatron: Path) -> None:
    """Bridge beside Megatron-Core, with the recipes for text alone."""
    import torch

    stream = torch.cuda.Stream
    prepare(megatron)
    torch.cuda.Stream = stream
    reach_bridge()
    bridge = import_module("megatron.bridge")
    bridge.recipes = recipes = ModuleType("megatron.bridge.recipes")
    recipes.__path__ = [str(BRIDGE / "megatron" / "bridge" / "recipes")]
    sys.modules[recipes.__name__] = recipes
    for family in FAMILIES:
        module = import_module(f"{recipes.__name__}.{family}")
        vars(recipes).update((name, getattr(module, name)) for name in module.__all__)
    sys.modules["transformer_engine.pytorch.optimizers"].FusedAdam = FusedAdam


def stages(case: RecipeStart, report: dict[str, Any], enter: Callable[[str], None]) -> None:
    """Go through all stages; whatever one of them raises ends the start."""
    import megatron.bridge.recipes
    from megatron.bridge import AutoBridge
    from megatron.bridge.training.config import runtime_config_update
    from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

    set_machine(case)
    of_hub = AutoBridge.from_hf_pretrained
    AutoBridge.from_hf_pretrained = lambda *_, **__: of_hub(case.config)
    enter("recipe")
    try:
        config = getattr(megatron.bridge.recipes, case.recipe)()
    finally:
        AutoBridge.from_hf_pretrained = of_hub
    enter("overrides")
    config = process_config_with_overrides(config, cli_overrides=case.overrides)
    enter("validate")
    runtime_config_update(config)
    enter("done")
    report.update(found(config))


def precision(mixed: Any) -> dict[str, str]:
    """Every field of a mixed precision but that of gradients."""
    return {
        name: str(value) for name, value in vars(mixed).items() if name != "grad_reduce_in_fp32"
    }


def adapters(config: Any) -> dict[str, Any]:
    """What is trained where adapters are, and of what samples; empty where all is."""
    if config.peft is None:
        return {}
    specs = config.dataset.offline_packing_specs
    return {
        "dim": config.peft.dim,
        "target_modules": list(config.peft.target_modules),
        "dropout": config.peft.dropout,
        "packed": specs and specs.packed_sequence_size,
        "padded": specs and specs.pad_seq_to_mult,
        "checkpoint": config.checkpoint.pretrained_checkpoint,
    }


def summary(config: Any) -> str:
    """What a training prints of its configuration at its start."""
    with redirect_stdout(StringIO()) as printed:
        config.log_non_default_values()
    return printed.getvalue()


def found(config: Any) -> dict[str, Any]:
    """The plan that a validated configuration trains by."""
    model = config.model
    layout = model.pipeline_model_parallel_layout
    chunks = layout and [count_decoders(chunk) for stage in layout.layout for chunk in stage]
    return {
        "dp": config.data_parallel_size,
        "tp": model.tensor_model_parallel_size,
        "pp": model.pipeline_model_parallel_size,
        "cp": model.context_parallel_size,
        "ep": model.expert_model_parallel_size,
        "etp": model.expert_tensor_parallel_size,
        "vpp": model.virtual_pipeline_model_parallel_size or 1,
        "sequence_parallel": model.sequence_parallel,
        "mtp_layers": getattr(model, "mtp_num_layers", None) or 0,
        "micro_batch": config.train.micro_batch_size,
        "zero_stage": zero_stage(SimpleNamespace(**vars(config.optimizer) | vars(config.ddp))),
        "dp_replicate": config.ddp.num_distributed_optimizer_instances,
        "global_batch": config.train.global_batch_size,
        "seq_len": model.seq_length,
        "layers": chunks,
        "recompute": model.recompute_granularity,
        "learning_rate": config.optimizer.lr,
        "gradient_bytes": 4 if config.ddp.grad_reduce_in_fp32 else 2,
        "precision": precision(config.mixed_precision),
        "adapters": adapters(config),
        "summary": summary(config),
        "sizes": {
            "num_layers": model.num_layers,
            "hidden_size": model.hidden_size,
            "num_heads": model.num_attention_heads,
            "num_kv_heads": model.num_query_groups or model.num_attention_heads,
            "ffn_size": model.ffn_hidden_size,
            "tied_embeddings": model.share_embeddings_and_output_weights,
            "gated_mlp": model.gated_linear_unit,
        },
    }


if __name__ == "__main__":
    serve_starts(RecipeStart, stages, import_bridge)
