"""Rules of Accelerate's file: those of ``rules.yaml``, and what no condition says."""

from planner.documents.tree import load_own
from planner.formats.accelerate import keys
from planner.formats.accelerate.keys import AccelerateView, of_another_model
from planner.formats.settings import Refused, Rules, one_of

PLUGIN = "accelerate/utils/dataclasses.py FullyShardedDataParallelPlugin"
WRAPPED = f"{keys.FSDP}transformer_layer_cls_to_wrap"
STATE_DICTS = ("SHARDED_STATE_DICT", "FULL_STATE_DICT")
rule = Rules(AccelerateView)
rule.add_table(load_own(__package__, "rules.yaml"))


@rule("accelerate/commands/config/config_args.py", key=keys.TYPE)
def distributed_type_known(file: AccelerateView) -> Refused:
    """The type is one Accelerate has."""
    given = file[keys.TYPE]
    allowed = keys.schema()["$defs"]["distributed_types"]["enum"]
    is_given = keys.TYPE in file.settings and not isinstance(given, bool)
    return {f"given {given!r}; {one_of(allowed)}": is_given and given not in allowed}


@rule(PLUGIN, key=f"{keys.FSDP}state_dict_type")
def state_dict_type_known(file: AccelerateView) -> Refused:
    """Checkpoints are whole or sharded; FSDP1 also knows local ones."""
    given = file.word(f"{keys.FSDP}state_dict_type", STATE_DICTS[0]).upper()
    allowed = STATE_DICTS if file.is_fsdp2 else (*STATE_DICTS, "LOCAL_STATE_DICT")
    is_known = given in allowed or given.isdigit()
    return {f"given {given}; {one_of(allowed)}": file.is_fsdp and not is_known}


rule.unenforced(
    f"{PLUGIN} set_auto_wrap_policy raises",
    name="wrapped_class_is_the_models",
    holds="FSDP wraps layers by the name of their class.",
    key=WRAPPED,
    when=lambda file: of_another_model(file, WRAPPED) if file.is_fsdp else {},
)
