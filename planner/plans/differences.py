"""What differs between two layouts, and a layout in one line."""

from planner.spec.strategy import OFFLOAD_POLICIES, STRATEGY_FIELDS, Strategy

_TITLES = {
    name: decision.title or name
    for name, decision in STRATEGY_FIELDS.items()
    if decision.kind and name != "offload_percent"
}


def _word(strategy: Strategy, name: str) -> str:
    value = getattr(strategy, name)
    if name == "offload":
        return _offload(strategy)
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _offload(strategy: Strategy) -> str:
    percent = strategy.offload_percent
    return f"{strategy.offload} {percent} %" if percent < 100 else strategy.offload


def _moved(strategy: Strategy) -> dict[str, str]:
    """What else than recomputation layers are under, and how many."""
    under, num_layers = strategy.layers_under, sum(strategy.layers_per_stage)
    return {
        policy.title: f"{under[name]}/{num_layers}" if under[name] else "none"
        for name, policy in OFFLOAD_POLICIES.items()
    }


def values(strategy: Strategy) -> dict[str, str]:
    """What tells layouts apart, by what it is called."""
    named = {title: _word(strategy, name) for name, title in _TITLES.items()}
    named["recompute"] = strategy.recompute
    named |= _moved(strategy)
    layers = strategy.layers_per_stage
    named["layers per stage"] = (
        ", ".join(map(str, layers)) if len(layers) <= 16 else (f"{min(layers)} to {max(layers)}")
    )
    modules = strategy.recompute_modules
    named["recompute modules"] = "the profile's" if modules is None else ", ".join(modules)
    return named


def differences(before: Strategy, after: Strategy) -> dict[str, tuple[str, str]]:
    """What is not the same in both, by what it is called."""
    first, second = values(before), values(after)
    changed = {name: (old, second[name]) for name, old in first.items() if old != second[name]}
    if before.etp == before.tp and after.etp == after.tp:
        changed.pop("etp", None)
    same_stages = before.pp == after.pp
    if not same_stages:
        changed.pop("layers per stage", None)
    if "none" in (first["recompute"], second["recompute"]):
        changed.pop("recompute modules", None)
    return changed


def short_layout(strategy: Strategy) -> str:
    """Degrees above one and what is not usual, in one line."""
    degrees = [f"{name}={value}" for name, value in strategy.degrees.items()]
    extras = [
        f"ZeRO-{strategy.zero_stage}",
        f"micro-batch {strategy.micro_batch}",
        *([strategy.schedule] if strategy.schedule != "1f1b" else []),
        *([f"recompute {strategy.recompute}"] if strategy.recompute != "none" else []),
        *([f"offload {_offload(strategy)}"] if strategy.offload != "none" else []),
        *(f"{title} {layers}" for title, layers in _moved(strategy).items() if layers != "none"),
    ]
    return ", ".join([" ".join(degrees) or "one GPU", *extras])
