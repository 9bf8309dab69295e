"""What OpenRLHF refuses when a job starts. Settings are those of a word."""

from planner.formats.format import World
from planner.formats.rules import Rules, Said
from planner.formats.settings import Settings, as_number, flag, given, whole, word

RULES = Rules()
_PPO = "openrlhf/cli/train_ppo_ray.py"
GROUPED = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")
"""Estimators that compare answers to one prompt."""


def _product(settings: Settings, *names: str) -> int:
    """Of whole numbers; 0 where one is not known."""
    product = 1
    for name in names:
        product *= whole(settings, name, 0)
    return product


@RULES(f"{_PPO} train")
def engines_take_the_actor_s_gpus(settings: Settings, _: World) -> Said:
    """With all models together vLLM's engines have as many ranks as the actor has GPUs."""
    if not flag(settings, "together") or flag(settings, "asynchronous"):
        return
    gpus = _product(settings, "nodes", "per_node")
    ranks = _product(settings, "engines", "engine_ranks")
    if gpus and ranks and gpus != ranks:
        each = whole(settings, "engine_ranks", 0)
        what = f"{settings['engines'].value} engines of {each} ranks are {ranks}"
        yield (
            "engines",
            f"{what}; the actor has {gpus} GPUs, and {settings['together'].key} is given",
        )


@RULES(f"{_PPO} train")
def reference_has_the_actor_s_gpus(settings: Settings, _: World) -> Said:
    """A reference model that shares the actor's GPUs is spread as the actor is."""
    is_shared = flag(settings, "together") or flag(settings, "with_reference")
    if not is_shared or as_number(given(settings, "kl")) in (0, None):
        return
    for own, other in (("nodes", "ref_nodes"), ("per_node", "ref_per_node")):
        wanted, found = whole(settings, own, 0), whole(settings, other, 0)
        if wanted and found and wanted != found:
            place = other if settings[other].line else own
            yield (
                place,
                f"given {found} beside {settings[own].key} {wanted}; the same, as they share",
            )


@RULES(f"{_PPO}")
def groups_have_several_answers(settings: Settings, _: World) -> Said:
    """Estimators that compare the answers to a prompt need two of them."""
    estimator = word(settings, "estimator", "gae")
    if estimator in GROUPED and given(settings, "answers") == 1:
        place = "answers" if settings["answers"].line else "estimator"
        yield place, f"{settings['answers'].key} is 1 with {estimator}; 2 or more"


@RULES("openrlhf/cli/train_sft.py")
def split_sequences_are_packed(settings: Settings, _: World) -> Said:
    """Ring attention takes packed samples; train_ppo_ray packs them by itself."""
    is_sft = "ring" in settings and "nodes" not in settings
    if is_sft and whole(settings, "ring", 1) > 1 and not flag(settings, "packed"):
        yield "ring", f"given {given(settings, 'ring')} without {settings['packed'].key}"
