"""Words of Megatron scripts with a plan put in, against Megatron-LM's own start."""

from pathlib import Path

import pytest
from contexts import context_of, strategy_of
from megatron_start import Start
from script_forms import BY_HAND, ENVIRONMENTS, KINDS, SCRIPTS, started
from starts import Starts

from planner.formats.format import SourceText
from planner.formats.registry import load_format

PLAN = KINDS["megatron"].plans[-1]
FORMS = [path for path in SCRIPTS if path.parent.name == "megatron"]
WRITTEN = [path for path in FORMS if BY_HAND not in path.read_text()]
LEFT = "--lr 1e-4 --train-iters 10 --tokenizer-type NullTokenizer --vocab-size 32000"
LEFT += " --save-interval 10"
"""What the forms leave out, and no plan says."""
FILES = {"--te-precision-config-file", "config.yaml"}  # Words about a file that a form makes up
ENVIRONMENT = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
SAME = ("dp", "tp", "pp", "num_micro_batches")


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_megatron_starts_what_a_script_hands_on(
    megatron: Starts, path: Path, tmp_path: Path
) -> None:
    source = SourceText(path="train.sh", text=path.read_bytes().decode())
    context, strategy = context_of(), strategy_of(**PLAN)
    text = load_format("megatron").write_into(source, context, strategy)
    launches = [words for each in ENVIRONMENTS for words in started(text, tmp_path, each)]
    for launch in {tuple(words) for words in launches}:
        at = next(at for at, word in enumerate(launch) if word.endswith(".py"))
        if launch[at].startswith("tools/"):
            continue
        words = [*(word for word in launch[at + 1 :] if word not in FILES), *LEFT.split()]
        start = Start(words=words, num_gpus=strategy.num_gpus, environment=ENVIRONMENT)
        report = megatron.start(start)
        assert "error" not in report, report
        assert [report[name] for name in SAME] == [getattr(strategy, name) for name in SAME]
