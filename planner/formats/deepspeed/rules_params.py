"""Rules of what optimizers and schedules take: those that DeepSpeed makes itself."""

from collections.abc import Iterator

from planner.formats.deepspeed import keys
from planner.formats.deepspeed.keys import DeepspeedView
from planner.formats.rules import Rules, Violations
from planner.formats.settings import Settings, given
from planner.spelling import did_you_mean

rule = Rules(DeepspeedView)
_ADAM = "lr betas eps weight_decay bias_correction amsgrad"
_OF_ADAM = f"{_ADAM} torch_adam adam_w_mode adamw_mode set_grad_none fp32_optimizer_states fused"
_WARMUP = "warmup_min_lr warmup_max_lr warmup_num_steps warmup_type last_batch_iteration"
_ONE_CYCLE = (
    "cycle_min_lr cycle_max_lr decay_lr_rate cycle_first_step_size cycle_second_step_size "
    "cycle_first_stair_count cycle_second_stair_count decay_step_size cycle_momentum cycle_min_mom "
    "cycle_max_mom decay_mom_rate last_batch_iteration"
)
TAKEN = {
    "optimizer": {
        "adam": _OF_ADAM,
        "adamw": _OF_ADAM,
        "lamb": f"{_ADAM} eps_inside_sqrt max_coeff min_coeff",
        "lion": "lr betas weight_decay set_grad_none fp32_optimizer_states",
        "adagrad": "lr eps weight_decay amsgrad fp32_optimizer_states",
    },
    "scheduler": {
        "warmuplr": _WARMUP,
        "warmupdecaylr": f"total_num_steps {_WARMUP}",
        "warmupcosinelr": (
            "total_num_steps warmup_min_ratio warmup_num_steps cos_min_ratio warmup_type "
            "last_batch_iteration"
        ),
        "onecycle": _ONE_CYCLE,
        "lrrangetest": (
            "lr_range_test_min_lr lr_range_test_step_size lr_range_test_step_rate "
            "lr_range_test_staircase last_batch_iteration"
        ),
    },
}
"""Names of parameters by type, from the signatures of DeepSpeed 0.19.8."""
NEEDED = {
    "warmupdecaylr": ("total_num_steps",),
    "warmupcosinelr": ("total_num_steps",),
    "onecycle": ("cycle_min_lr", "cycle_max_lr"),
}
WORDS = ("warmup_type",)
CLIPPING = "max_grad_norm"
"""Of which another rule speaks."""
_MADE = "deepspeed/runtime/engine.py makes them"


@rule(f"{_MADE}: Python refuses the argument", enforced=False)
def parameters_are_known(file: DeepspeedView) -> Violations:
    """Optimizer and scheduler take the parameters that are given."""
    for section, kind, names in _sections(file.settings):
        known = TAKEN[section][kind].split()
        for name in names:
            if name not in (*known, CLIPPING):
                hint = did_you_mean(name, known) or f"it takes {', '.join(known)}"
                yield f"{section}.params.{name}", f"no parameter of {kind}; {hint}"


@rule(f"{_MADE}: Python misses the argument", enforced=False)
def needed_parameters_are_given(file: DeepspeedView) -> Violations:
    """Schedules that end are told when."""
    for section, kind, names in _sections(file.settings):
        for name in NEEDED.get(kind, ()) if section == "scheduler" else ():
            if name not in names:
                yield f"{section}.params", f"{file[f'{section}.type']} needs {name}"


@rule(f"{_MADE}, and computes with them", enforced=False)
def parameters_are_numbers(file: DeepspeedView) -> Violations:
    """Learning rates, decays and steps are numbers, without quotes."""
    for section, _kind, names in _sections(file.settings):
        for name in names:
            value = file[f"{section}.params.{name}"]
            texts = value if isinstance(value, list) else [value]
            wrong = [text for text in texts if isinstance(text, str) and text != keys.AUTO]
            if wrong and name not in WORDS:
                message = f"a number is needed, without quotes; given {wrong[0][:40]!r}"
                yield f"{section}.params.{name}", message


def _sections(settings: Settings) -> Iterator[tuple[str, str, list[str]]]:
    """Section, type in small letters and names of parameters, of types that are known."""
    for section, kinds in TAKEN.items():
        kind, start = given(settings, f"{section}.type"), f"{section}.params."
        if isinstance(kind, str) and kind.lower() in kinds:
            names = [key.removeprefix(start) for key in settings if key.startswith(start)]
            yield section, kind.lower(), [name for name in names if "." not in name]
