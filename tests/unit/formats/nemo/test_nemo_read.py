"""What NeMo's YAML decides: references followed, defaults of its own, and what is not priced."""

import pytest

from planner.errors import InputError
from planner.formats.foreign import program_of
from planner.formats.format import ALL, Reading, SourceText
from planner.formats.registry import load_format, recognised

NEMO = load_format("nemo")
FILE = """\
run:
  name: llama
trainer:
  devices: 8
  num_nodes: 4
  precision: bf16
model:
  mcore_gpt: true
  micro_batch_size: 1
  global_batch_size: 64
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: 4
  encoder_seq_length: 4096
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: ${multiply:4, ${.hidden_size}}
  num_attention_heads: 32
  num_query_groups: 8
  normalization: rmsnorm
  activation: fast-swiglu
  bias: false
  share_embeddings_and_output_weights: false
  position_embedding_type: rope
  megatron_amp_O2: true
  transformer_engine: true
  sequence_parallel: true
  optim:
    name: mcore_distributed_optim
    grad_sync_dtype: bf16
"""


def read(text: str = FILE, **changes: str) -> Reading:
    """A file with some lines changed: the key with underscores, the line's new value."""
    for key, value in changes.items():
        lines = text.splitlines()
        at = next(i for i, line in enumerate(lines) if line.strip().startswith(f"{key}:"))
        indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        lines[at] = f"{indent}{key}: {value}"
        text = "\n".join(lines) + "\n"
    return NEMO.read(SourceText(path="llama.yaml", text=text))


def decided(reading: Reading) -> dict[str, object]:
    return {name: each.value for name, each in reading.decisions.items()}


def test_degrees_batch_and_states_are_megatron_s_under_other_names() -> None:
    found = decided(read())
    wanted = {"num_gpus": 32, "dp": 4, "tp": 4, "pp": 2, "vpp": 4, "micro_batch": 1}
    wanted |= {"num_micro_batches": 16, "seq_len": 4096, "precision": "bf16"}
    assert {name: found[name] for name in wanted} == wanted
    assert found["zero_stage"] == 1
    assert found["gradient_bytes"] == 2
    assert found["sequence_parallel"] is True


def test_the_model_is_the_one_described() -> None:
    own = read().own_model
    assert own is not None
    assert (own.spec.num_layers, own.spec.num_kv_heads, own.spec.ffn_size) == (32, 8, 16384)
    assert own.spec.gated_mlp
    assert not own.spec.tied_embeddings
    assert own.spec.norm == "rmsnorm"
    assert not own.spec.biases.mlp


def test_references_are_followed_under_the_launcher_s_name_too() -> None:
    text = FILE.replace("encoder_seq_length: 4096", "encoder_seq_length: ${training.model.length}")
    text = text.replace("  num_layers: 32", "  length: 1024\n  num_layers: 32")
    assert decided(read(text))["seq_len"] == 1024


def test_a_loop_of_references_is_not_known() -> None:
    reading = read(tensor_model_parallel_size="${.tensor_model_parallel_size}")
    assert "tp" in reading.left_open


def test_what_the_command_line_has_to_give_is_left_open() -> None:
    reading = read(num_nodes="???")
    assert "num_gpus" not in reading.decisions
    assert reading.left_open["num_gpus"].key == "trainer.num_nodes"


def test_full_recomputation_by_nemo_s_words() -> None:
    more = "  activations_checkpoint_granularity: full\n  activations_checkpoint_method: uniform\n"
    more += "  activations_checkpoint_num_layers: 1\n  optim:"
    found = decided(read(FILE.replace("  optim:", more)))
    assert found["recompute_layers_per_stage"] in (ALL, (16, 16))


def test_fine_tuning_fills_no_sequence() -> None:
    data = "  data:\n    train_ds:\n      max_seq_length: 2048\n  optim:"
    text = FILE.replace("  encoder_seq_length: 4096\n", "").replace("  optim:", data)
    reading = read(text.replace("${.encoder_seq_length}", "4096"))
    assert "seq_len" not in reading.decisions
    assert reading.longest is not None
    assert reading.longest.value == 2048
    packed = read(text.replace("      max_seq", "      packed_sequence: true\n      max_seq"))
    assert decided(packed)["seq_len"] == 2048
    assert reading.batching is not None
    assert reading.batching.value == "padded"
    assert packed.batching is not None
    assert (packed.batching.value, packed.batching.line > 0) == ("packed", True)
    filled = read(text.replace("      max_seq", "      pad_to_max_length: true\n      max_seq"))
    assert filled.batching is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"megatron_amp_O2": "false"}, "megatron_amp_O2 false"),
        ({"precision": "32"}, "trainer.precision 32"),
        ({"optim": "\n    name: adafactor\n  other:"}, "model.optim.name adafactor"),
        ({"mcore_gpt": "true\n  peft:\n    peft_scheme: lora"}, "adapters under Megatron"),
        ({"mcore_gpt": "true\n  fsdp: true"}, "torch's FSDP"),
        ({"devices": "8\n  dpo:\n    max_epochs: 1"}, "trainer.dpo"),
        ({"mcore_gpt": "true\n  mm_cfg:\n    llm: x"}, "vision tower"),
    ],
)
def test_what_is_not_priced_is_refused_by_name(changes: dict[str, str], says: str) -> None:
    assert says in read(**changes).unpriced


def test_of_a_model_that_is_no_decoder_no_rule_is_asked() -> None:
    reading = read(mcore_gpt="true\n  encoder:\n    num_layers: 7")
    assert reading.made_for
    assert not reading.settings


def test_kernels_and_overlap_are_those_the_file_asks_for() -> None:
    assert ("kernels.attention", "unfused") in read(transformer_engine="false").traits
    assert read().traits == ()
    overlapped = read(sequence_parallel="true\n  ub_tp_comm_overlap: true")
    assert ("overlap.tensor_parallel_overlap", "ring") in overlapped.traits


def test_a_value_of_the_wrong_kind_is_a_finding_at_its_line() -> None:
    (finding,) = read(micro_batch_size="many").findings
    assert (finding.rule, finding.line) == ("nemo.bad_value", 9)


def test_a_list_is_no_configuration() -> None:
    with pytest.raises(InputError, match="keys with values"):
        NEMO.read(SourceText(path="a.yaml", text="- 1\n"))


def test_only_yaml_of_a_trainer_and_megatron_s_layers_is_taken() -> None:
    source = SourceText(path="a.yaml", text=FILE)
    assert [each.name for each in recognised(source)] == ["nemo"]
    speech = FILE.replace("tensor_model_parallel_size", "x").replace("megatron_amp_O2", "y")
    speech = speech.replace("mcore_gpt", "z").replace("micro_batch_size", "w")
    assert recognised(SourceText(path="a.yaml", text=speech)) == []
    assert recognised(SourceText(path="a.sh", text=FILE)) == []


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("policy:\n  megatron_cfg:\n    enabled: true\n", "NeMo-RL"),
        ("model:\n  _target_: nemo_automodel.NeMoAutoModel\n", "NeMo-Automodel"),
        ("model:\n  _target_: nemo.collections.llm.LlamaModel\n", "NeMo 2"),
    ],
)
def test_its_successors_are_named(text: str, program: str) -> None:
    assert program_of(SourceText(path="a.yaml", text=text)) == program
