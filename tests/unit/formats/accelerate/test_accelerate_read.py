"""What a file of Accelerate's decides, and what is said about its keys."""

import pytest

from planner.errors import InputError
from planner.formats.accelerate.format import FORMAT
from planner.formats.format import ParsedConfig, SourceText


def read(text: str) -> ParsedConfig:
    return FORMAT.read(SourceText(path="a.yaml", text=text))


def decisions(text: str) -> dict[str, tuple[object, int]]:
    return {name: (each.value, each.line) for name, each in read(text).decisions.items()}


def test_fsdp2_decides_stage_degrees_and_recomputation_with_their_lines() -> None:
    text = """\
distributed_type: FSDP
num_processes: 16
mixed_precision: bf16
fsdp_config:
  version: 2
  fsdp_reshard_after_forward: false
  activation_checkpointing: true
parallelism_config:
  parallelism_config_dp_replicate_size: 2
  parallelism_config_dp_shard_size: 4
  parallelism_config_tp_size: 2
"""
    assert decisions(text) == {
        "tp": (2, 11),
        "dp_replicate": (2, 9),
        "dp": (8, 10),
        "zero_stage": (2, 6),
        "recompute_layers_per_stage": ("all", 7),
        "num_gpus": (16, 2),
        "precision": ("bf16", 3),
    }


def test_defaults_that_are_not_neutral_are_decisions_without_a_line() -> None:
    fsdp = decisions("distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {fsdp_version: 2}\n")
    assert fsdp["zero_stage"] == (3, 0)
    zero = decisions("distributed_type: DEEPSPEED\nnum_processes: 8\n")
    assert zero["zero_stage"] == (2, 0)


@pytest.mark.parametrize(
    ("strategy", "stage"), [("FULL_SHARD", 3), ("SHARD_GRAD_OP", 2), ("NO_SHARD", 0), ("2", 2)]
)
def test_fsdp1_names_its_stage(strategy: str, stage: int) -> None:
    text = f"distributed_type: FSDP\nfsdp_config: {{fsdp_sharding_strategy: {strategy}}}\n"
    assert decisions(text)["zero_stage"][0] == stage


@pytest.mark.parametrize("kind", ["'NO'", "NO"])
@pytest.mark.parametrize("processes", ["", "num_processes: 8\n"])
def test_a_file_without_a_distributed_type_starts_one_process(kind: str, processes: str) -> None:
    found = decisions(f"distributed_type: {kind}\n{processes}")
    assert (found["num_gpus"][0], found["dp"][0]) == (1, 1)


@pytest.mark.parametrize(
    ("stage", "optimizer", "parameters", "moved"),
    [
        (3, "cpu", "cpu", "optimizer+parameters:host"),
        (2, "cpu", "cpu", "optimizer:host"),
        (2, "none", "cpu", None),
        (0, "cpu", "cpu", None),
    ],
)
def test_what_a_stage_does_not_split_stays_on_the_accelerator(
    stage: int, optimizer: str, parameters: str, moved: str | None
) -> None:
    text = (
        "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n"
        f"  zero_stage: {stage}\n  offload_optimizer_device: {optimizer}\n"
        f"  offload_param_device: {parameters}\n"
    )
    assert decisions(text).get("offload", (None, 0))[0] == moved


def test_flags_of_fp8_layers_may_be_a_list() -> None:
    reading = read(
        "distributed_type: 'NO'\nmixed_precision: fp8\n"
        "fp8_config: {backend: TE, override_linear_precision: [false, false, true]}\n"
    )
    assert reading.findings == ()


@pytest.mark.parametrize("key", ["train_batch_size", "contiguous_gradients", "zero_optimization"])
def test_keys_of_deepspeeds_own_file_are_sent_there(key: str) -> None:
    reading = read(f"distributed_type: DEEPSPEED\ndeepspeed_config:\n  {key}: 1\n")
    assert "deepspeed_config_file" in reading.findings[0].message


def test_a_file_for_sagemaker_is_refused_as_such() -> None:
    text = "compute_environment: AMAZON_SAGEMAKER\nec2_instance_type: ml.p4d.24xlarge\n"
    with pytest.raises(InputError, match="AMAZON_SAGEMAKER starts machines of its own"):
        read(text)


def test_unknown_keys_are_found_with_the_nearest_known_one_inside_sections_too() -> None:
    reading = read("distributed_type: FSDP\nfsdp_config:\n  fsdp_versoin: 2\nnum_proceses: 8\n")
    found = [(each.rule, each.key, each.line) for each in reading.findings]
    assert found == [
        ("accelerate.unknown_key", "fsdp_config.fsdp_versoin", 3),
        ("accelerate.unknown_key", "num_proceses", 4),
    ]
    assert "fsdp_version" in reading.findings[0].message
    assert "num_processes" in reading.findings[1].message


def test_wrong_values_and_duplicates_are_found() -> None:
    reading = read(
        "num_processes: many\nnum_machines: 1\nnum_machines: 2\n"
        "fsdp_config:\n  fsdp_offload_params: maybe\n  version: 2\n  fsdp_version: 1\n"
    )
    rules = [(each.rule.partition(".")[2], each.line) for each in reading.findings]
    assert rules == [("bad_value", 1), ("duplicate_key", 3), ("bad_value", 5), ("duplicate_key", 7)]


@pytest.mark.parametrize(
    ("text", "is_taken"),
    [
        ("num_machines: 1.0", True),
        ("num_machines: 1.5", False),
        ("num_machines: 2.0", False),
        ("num_machines: .inf", False),
        ("num_processes: 8.0", False),
        ("machine_rank: 1.0", True),
        ("main_process_port: 29500.0", False),
    ],
)
def test_a_float_is_taken_where_no_number_of_processes_is_spelt_from_it(
    text: str, *, is_taken: bool
) -> None:
    found = [each.rule for each in read(f"distributed_type: FSDP\n{text}\n").findings]
    assert found == ([] if is_taken else ["accelerate.bad_value"])


@pytest.mark.parametrize("text", ["", "[1, 2]", "word", "a: [", "a: 1\n---\nb: 2"])
def test_what_is_no_mapping_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"a\.yaml::"):
        read(text)


@pytest.mark.parametrize(
    ("text", "is_ours"),
    [
        ("compute_environment: LOCAL_MACHINE\n", True),
        ('{"distributed_type": "FSDP"}', True),
        ("# distributed_type: FSDP\na: 1\n", False),
        ("kind: TrainJob\n", False),
        ("distributed_type: [", False),
    ],
)
def test_a_file_is_recognised_by_what_it_holds(text: str, *, is_ours: bool) -> None:
    assert FORMAT.recognise(SourceText(path="x", text=text)) is is_ours


def test_a_key_with_a_dot_is_unknown() -> None:
    reading = read("distributed_type: FSDP\nfsdp.version: 2\n")
    assert [each.key for each in reading.findings] == ["fsdp.version"]


@pytest.mark.parametrize(
    ("kind", "framework"),
    [
        ("FSDP", "accelerate"),
        ("MULTI_GPU", "accelerate"),
        ("DEEPSPEED", "deepspeed"),
    ],
)
def test_the_framework_is_that_of_the_engine(kind: str, framework: str) -> None:
    assert FORMAT.framework_of(read(f"distributed_type: {kind}\n")) == framework


def test_a_file_that_starts_megatron_lm_is_not_covered() -> None:
    with pytest.raises(InputError, match="distributed_type: MEGATRON_LM is not covered"):
        read("distributed_type: MEGATRON_LM\nnum_processes: 8\n")


def test_a_megatron_section_of_another_type_is_left_alone() -> None:
    text = "distributed_type: MULTI_GPU\nnum_processes: 8\nmegatron_lm_config: {a: 1}\n"
    assert read(text).findings == ()


@pytest.mark.parametrize("value", ["2.0", "'2'", "2"])
def test_a_whole_number_with_a_point_is_none(value: str) -> None:
    text = f"distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  fsdp_version: {value}\n"
    found = [each.message for each in read(text).findings]
    assert found == ["given 2.0; a whole number is allowed"] * (value == "2.0")
