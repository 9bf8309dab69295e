"""Starts torchtitan's own trainer on command-line words, up to where it would allocate the model.

Reads one JSON object per line (words, world) and answers with one line each. What runs is
torchtitan's: configuration, meshes on a fake process group, checks, model on the meta device,
sharding wrappers, pipeline stages and schedule. It stops at the first ``to_empty``.
"""

import contextlib
import io
import os
import re
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from starts import serve

DEGREES = ("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep")


class NoMetrics:
    """Stands in for metrics, which ask the GPU for its name."""

    def build(self, **_: Any) -> Any:
        from torchtitan.tools.utils import NoColor

        return types.SimpleNamespace(color=NoColor())


class StartedError(Exception):
    """The trainer got as far as allocating the model."""


def stub_kernels() -> None:
    """Stands in for torchtitan's Triton kernels, which need the GPU's compiler to import."""
    name = "torchtitan.distributed.minimal_async_ep.kernels"
    stub: Any = types.ModuleType(name)

    def anything(attribute: str) -> Callable[..., None]:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return lambda *_, **__: None

    stub.__getattr__ = anything
    sys.modules[name] = stub


def use_cpu() -> None:
    """Without a GPU torchtitan believes in CUDA: it is told otherwise before anything is read."""
    from torchtitan.tools import utils

    utils.device_type = "cpu"
    utils.device_module = types.SimpleNamespace(set_device=lambda _: None)
    utils.get_local_device = lambda: torch.device("cpu")


def start(words: list[str], world: int) -> dict[str, Any]:
    """Degrees, parameters and layers per part of the trainer; or what it says against them."""
    from torchtitan.config import ConfigManager
    from torchtitan.trainer import Trainer

    os.environ.update(NGPU=str(world), RANK="0", LOCAL_RANK="0", WORLD_SIZE=str(world))
    log = io.StringIO()
    seen: dict[str, Any] = {}
    torch.nn.Module.to_empty = _remembering(seen)  # type: ignore[method-assign]
    try:
        with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            config: Any = ConfigManager().parse_args(words)
            config.comm.mode = "fake_backend"
            config.metrics = NoMetrics()
            seen["policy"] = type(config.activation_checkpoint).__qualname__.partition(".")[0]
            seen["schedule"] = config.parallelism.pipeline_parallel_schedule
            trainer = object.__new__(Trainer)
            seen["trainer"] = trainer
            trainer.__init__(config)  # type: ignore[misc]
    except StartedError:
        return answer(seen)
    except SystemExit:
        printed = re.sub(r"[^\x20-\x7e]+", " ", log.getvalue())
        return {"error": " ".join(printed.split())[-400:]}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:400]}
    finally:
        seen.clear()
        if dist.is_initialized():
            dist.destroy_process_group()
    return {"error": "the trainer was made without a model"}


def _remembering(seen: dict[str, Any]) -> Callable[..., None]:
    def to_empty(module: torch.nn.Module, **_: Any) -> None:
        seen["part"] = module
        raise StartedError

    return to_empty


def answer(seen: dict[str, Any]) -> dict[str, Any]:
    trainer = seen["trainer"]
    dims, part = trainer.parallel_dims, seen["part"]
    parts = getattr(trainer, "model_parts", None) or [part]
    return {
        "degrees": {name: getattr(dims, name) for name in DEGREES},
        "layers": [len(each.layers) for each in parts],
        "accumulation": trainer.gradient_accumulation_steps,
        "micro_batches": trainer.num_pipeline_parallel_microbatches,
        "policy": seen["policy"],
        "schedule": type(getattr(trainer, "pp_schedule", None)).__name__,
        "parameters": sum(each.numel() for each in part.parameters()) if len(parts) == 1 else 0,
    }


def build(words: list[str]) -> dict[str, Any]:
    """The model of a configuration on the meta device: parameters, and what its size leaves open.

    The bias by which experts are balanced is a buffer of torchtitan's.
    """
    from torchtitan.config import ConfigManager

    config: Any = ConfigManager().parse_args(words)
    spec = config.model_spec.model
    with torch.device("meta"):
        model = spec.build()
    biases = [each for name, each in model.named_buffers() if name.endswith("expert_bias_E")]
    return {
        "parameters": sum(each.numel() for each in model.parameters()),
        "balancing": sum(each.numel() for each in biases),
        "is_tied": model.tok_embeddings.weight is model.lm_head.weight,
        "theta": spec.first_attention.rope.theta,
        "scaling": [spec.first_attention.rope.scaling, spec.first_attention.rope.scaling_factor],
        "eps": spec.norm.eps,
        "max_seq_len": spec.max_seq_len,
    }


def answer_to(case: dict[str, Any]) -> dict[str, Any]:
    if case["path"]:
        sys.path.insert(0, case["path"])
    os.environ.update(case["environment"])
    reply = start(case["words"], case["world"]) if case["world"] else build(case["words"])
    if case["path"]:
        sys.path.remove(case["path"])
        sys.modules.pop("planner_config", None)
    return reply


def prepare() -> None:
    warnings.simplefilter("ignore")
    stub_kernels()
    use_cpu()


if __name__ == "__main__":
    serve(answer_to, prepare)
