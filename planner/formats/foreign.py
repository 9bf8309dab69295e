"""Configurations of other programs, so that they are named and not taken for something else."""

import re

from planner.formats.format import SourceText

_NEOX = (
    "pipe.parallel.size|model.parallel.size|pos.emb|attention.config|data.impl|lr.decay.iters|"
    "text.gen.type|mock.run"
)
_NEMO = "micro_batch_size|tensor_model_parallel_size|model_parallel_size|trainer_configs|num_nodes"
_YAML = (".yaml", ".yml")
_SHELL = (".sh", ".slurm", ".sbatch")
_PROGRAMS = (
    (
        "Megatron-LM in YAML (--yaml-cfg)",
        r"\A(?=[\s\S]*^language_model:)(?=[\s\S]*^model_parallel:)",
        _YAML,
    ),
    (
        "Megatron-LM in YAML (MODEL_ARGS)",
        r"^MODEL_ARGS:[^\n]*$(?=(?:\n[ \t]*(?:#[^\n]*)?$)*\n[ \t]+['\"]?--)",
        _YAML,
    ),
    ("GPT-NeoX", rf"""^\s*["']({_NEOX})["']\s*:""", (*_YAML, ".json")),
    ("LLaMA-Factory 1.0", r"\A(?=[\s\S]*^train_dataset:)(?=[\s\S]*^model:)", _YAML),
    ("NeMo-RL", r"\A(?=[\s\S]*^policy:)(?=[\s\S]*^\s+(megatron_cfg|dtensor_cfg):)", _YAML),
    ("NeMo-Automodel", r"\bnemo_automodel\.\w|^recipe:\s*\n?\s*(_target_|Train)", _YAML),
    ("NeMo 2", r"\b_target_:\s*nemo\.(collections\.llm|lightning)\.", _YAML),
    ("NeMo 1.x", rf"^(trainer|exp_manager|run|defaults|model):(?=[\s\S]*^\s+({_NEMO}):)", _YAML),
    ("verl", r"^[^#\n]*\b(verl[./](trainer|experimental|recipe)|recipe[./]\w+)[./]\w", _SHELL),
    ("verl", r"^actor_rollout_ref:", _YAML),
    ("OpenRLHF", r"^[^#\n]*\bopenrlhf[./]cli[./]train_", _SHELL),
    ("Megatron-SWIFT", r"^\s*megatron (sft|pt|rlhf)\b", _SHELL),
    ("TRL's trainers for preferences", r"^[^#\n]*\btrl (dpo|grpo|kto|reward|rloo) ", _SHELL),
)
"""A program, what its files alone hold, and how their names end."""
_FOUND = tuple((name, re.compile(text, re.MULTILINE), ends) for name, text, ends in _PROGRAMS)


def program_of(source: SourceText) -> str:
    """The program whose configuration a file is; empty where that is not known."""
    found = (
        name
        for name, pattern, ends in _FOUND
        if source.path.lower().endswith(ends) and pattern.search(source.text)
    )
    return next(found, "")
