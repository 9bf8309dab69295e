"""Words that people use for a command, an option or its value, and what they mean here."""

import re
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from itertools import takewhile

from planner.limits import MAX_COUNT_DIGITS, MAX_TIME_LIMIT_S, brief, number_in

# By option: another word for one of its values.
OTHER_WORDS: Mapping[str, Mapping[str, str]] = {
    "--precision": {
        "bfloat16": "bf16",
        "float16": "fp16",
        "half": "fp16",
        "float32": "fp32",
        "float8": "fp8",
        "nvfp4": "fp4",
        "bf16-mixed": "bf16",
        "16-mixed": "fp16",
        "e4m3": "fp8",
    },
    "--optimizer": {
        "adamw": "adam",
        "adamw-torch": "adam",
        "adamw-torch-fused": "adam",
        "fused-adam": "adam",
        "adamw-8bit": "adam-8bit",
        "adamw-bnb-8bit": "adam-8bit",
        "paged-adamw-8bit": "adam-8bit",
    },
    "--objective": {
        "throughput": "time",
        "speed": "time",
        "fastest": "time",
        "price": "cost",
        "usd": "cost",
        "memory": "headroom",
        "tokens-per-dollar": "cost",
        "tokens-per-second": "time",
        "dollars": "cost",
        "mfu": "time",
    },
    "--format": {"yaml": "json", "yml": "json", "text": "table"},
}
OTHER_FORMATS: Mapping[str, str] = {
    "megatron-lm": "megatron",
    "megatron-core": "megatron",
    "mcore": "megatron",
    "nemo": "bridge",
    "megatron-bridge": "bridge",
    "llama-factory": "llamafactory",
    "swift": "ms-swift",
    "hf-trainer": "trainer",
    "transformers": "trainer",
}
# Words for frameworks that could mean more than one, or a format of files.
SEVERAL: Mapping[str, str] = {
    **dict.fromkeys(
        ("fsdp", "fsdp2"), "did you mean torchtitan, accelerate, trainer? each runs FSDP2"
    ),
    "ddp": "accelerate runs whole replicas: --framework accelerate --profile ddp",
    "megatron-bridge": "its files are those of --framework bridge",
    **dict.fromkeys(
        ("hf", "huggingface", "transformers"),
        "did you mean accelerate, trainer? both run its models",
    ),
    **dict.fromkeys(
        ("torch", "pytorch"), "did you mean torchtitan, accelerate, trainer? each uses its FSDP2"
    ),
    "zero": "did you mean deepspeed? the other frameworks shard as ZeRO does, too",
}
# Options of other programs that say what the model is.
OF_MODEL = (
    *("--num-layers", "--hidden-size", "--ffn-hidden-size", "--num-attention-heads"),
    *("--num-query-groups", "--num-experts", "--vocab-size", "--max-position-embeddings"),
)
# Options of other programs that say of what and how much the cluster is.
OF_CLUSTER: Mapping[str, str] = {
    **dict.fromkeys(("--gpus", "--num-gpus", "--ngpus", "--world-size"), "gpus"),
    "--num-processes": "gpus",
    "--nproc": "gpus",
    **dict.fromkeys(("--nodes", "--num-nodes", "--nnodes"), "nodes"),
    **dict.fromkeys(("--gpus-per-node", "--nproc-per-node", "--num-gpus-per-node"), "per_node"),
    **dict.fromkeys(("--gpu", "--gpu-type", "--accelerator", "--hardware", "--node"), "name"),
}
# Options of other programs, and what says the same here: an option, one and its value, nothing.
SAME_OPTIONS: Mapping[str, str] = {
    "--lora": "--train lora",
    "--qlora": "--train qlora",
    "--deepspeed": "--framework deepspeed",
    **dict.fromkeys(("--fsdp", "--sharding-strategy"), "--framework torchtitan"),
    "--strategy": "--framework {}",
    "--megatron": "--framework megatron",
    "--zero": "--zero-stage",
    **{f"--zero{dash}{stage}": f"--zero-stage {stage}" for stage in range(4) for dash in ("", "-")},
    **dict.fromkeys(
        ("--mbs", "--micro-batch-size", "--per-device-train-batch-size"), "--micro-batch"
    ),
    **dict.fromkeys(("--gbs", "--batch", "--batch-size", "--global-batch-size"), "--global-batch"),
    "explain --batch-size": "--micro-batch",  # of a command
    **{
        f"{command} {name}": "--gpus"
        for name, part in OF_CLUSTER.items()
        for command in ("check", "size")
        if part == "gpus"
    },
    **dict.fromkeys(
        (
            *("--seq", "--seqlen", "--seq-length", "--sequence-length", "--max-seq-len", "--ctx"),
            *("--context-length", "--cutoff-len", "--max-length"),
        ),
        "--seq-len",
    ),
    **{
        f"--{kind}{model}-parallel{size}": f"--{degree}"
        for kind, degree in (
            *(("tensor", "tp"), ("pipeline", "pp"), ("context", "cp"), ("expert", "ep")),
            ("data", "dp"),
        )
        for model in ("", "-model")
        for size in ("", "-size", "-degree")
    },
    **{f"--{name}": f"--precision {name}" for name in ("bf16", "fp16", "fp8", "fp4")},
    "--dtype": "--precision",
    "--mixed-precision": "--precision",
    "--optim": "--optimizer",
    "--train-batch-size": "--global-batch",
    "--train-micro-batch-size-per-gpu": "--micro-batch",
    "--activation-checkpointing": "--recompute full",
    "--num-tokens": "--tokens",
    "--block-size": "--seq-len",
    "--batch-tokens": "--global-batch-tokens",
    "--train-tokens": "--tokens",
    "--use-lora": "--train lora",
    "--peft": "--train {}",
    "--recompute-activations": "--recompute selective",
    "--json": "--format json",
    "--gradient-checkpointing": "--recompute full",
    "--cpu-offload": "--offload optimizer:host",
    "--slurm": "--launcher slurm --out run",
    **dict.fromkeys(("--compare-frameworks", "--all-frameworks"), "--framework any"),
    "--days": "--deadline {}d",
    "--hours": "--deadline {}h",
    "--moe-impl": "--set dispatcher={}",
    "--moe-token-dispatcher-type": "--set dispatcher={}",
    "--max-memory": "--margin 10",
    "--output": "--save",
    **dict.fromkeys(("--flash-attn", "--use-flash-attn", "--attn-implementation"), ""),
    "--tflops": "",
    "--model-name-or-path": "",
    **dict.fromkeys(OF_MODEL, ""),
}
# What is said of options of other programs, where it is more than the words for them here.
UNKNOWN_OPTIONS: Mapping[str, str] = {
    "--dpo": "preference tuning is not planned; --train dpo says what can be asked instead",
    "--rlhf": "reinforcement learning is not planned; --train rlhf says what can be asked instead",
    "--fsdp": f"a framework is named with --framework: {SEVERAL['fsdp']}",
    "--nvme": "a disk is not measured; overrides of a cluster file state nvme_read_gb_per_s",
    **dict.fromkeys(
        ("--plot", "--plot-file"),
        "curves are not drawn; `planner export MODEL CLUSTER --to html --out plan.html` has charts",
    ),
    "--strategy": "parts of a layout have options of their own, as --zero-stage 3 --tp 4 --pp 2",
    **dict.fromkeys(
        ("--grad-accum", "--gradient-accumulation-steps"),
        "steps follow from the batch: --global-batch is micro-batch x steps x data-parallel ranks",
    ),
    "--published": "published runs are compared by python -m tools.validate in a checkout",
    **dict.fromkeys(("--days", "--hours"), "time for the whole job is --deadline, as 30d or 12h"),
    **dict.fromkeys(
        ("--use-flash-attn", "--flash-attn", "--attn-implementation"),
        "attention is fused already where software has it; --set attention=flash2 says which",
    ),
    "--batch-size": "--global-batch says it here; on one GPU it is --micro-batch",
    **dict.fromkeys(OF_MODEL, "the model says it, by its name or in its file"),
    "--model-name-or-path": "the model is the first word, or stands behind --model",
    "--tflops": "stands in every answer, beside MFU and tokens/s; no option asks for it",
    "--max-memory": "memory is the accelerator's; --margin says what percentage stays free",
}
# Commands of a model and a cluster, and what each needs besides.
QUESTIONS: Mapping[str, Mapping[str, str]] = {
    "plan": {},
    "why": {"--tp": "2"},
    "size": {},
    "sensitivity": {},
    "job": {"--tokens": "15T"},
    "explain": {},
    "emit": {"--to": "megatron", "--out": "run"},
    "export": {"--to": "html", "--out": "plan.html"},
}
# Words before the cluster of other commands: what is reduced and its size; none.
CLUSTER_BEHIND = {"collective": 2, "calibrate": 0}
# Other words for what ``show`` shows.
SHOWN = {
    **dict.fromkeys(("accelerators", "gpu", "gpus", "nodes", "clusters"), "hardware"),
    **{name: f"{name}s" for name in ("model", "recipe", "framework")},
}
# Other words for commands: those that are meant, before and behind what is said with them.
OTHER_COMMANDS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "-V": (("--version",), ()),
    "--help-all": (("--help",), ()),
    "help": ((), ("--help",)),
    "repair": (("check", "--fix"), ()),
    "largest": (("plan",), ("--maximize", "seq-len")),
    "scale": (("size",), ("--gpus", "8..512")),
    "report": (("export",), ("--to", "html", "--out", "plan.html")),
    "trace": (("export",), ("--to", "perfetto", "--out", "plan.json")),
    "convert": (("emit",), ()),
    "generate": (("emit",), ()),
    "launch": (("emit",), ()),
    "train": (("plan",), ()),
    "estimate": (("plan",), ()),
    "memory": (("explain",), ("memory",)),
    "estimate-memory": (("explain",), ("memory",)),
    "fit": (("plan",), ()),
    "optimize": (("plan",), ()),
    "cost": (("job",), ()),
    "list": (("show",), ()),
    "ls": (("show",), ()),
    **{
        name: (("show", name), ())
        for name in ("models", "hardware", "recipes", "frameworks", "schema")
    },
}


def as_meant(words: list[str], commands: Collection[str]) -> list[str]:
    """The words as a command and its arguments.

    ``MODEL CLUSTER`` is ``plan MODEL CLUSTER``, ``--model M`` an argument, ``--tp=2`` two words;
    options may have underscores, and a section before a dot.
    """
    spelled = r"^--(?:[a-z_]+\.)*([a-z_]+)"
    words = [re.sub(spelled, lambda name: "--" + name[1].replace("_", "-"), word) for word in words]
    split = (word.split("=", 1) if word.startswith("--") else [word] for word in words)
    words = [part for parts in split for part in parts]
    if words in ([], ["show"], ["sweep"]):
        return [*words, "--help"]
    before, behind = OTHER_COMMANDS.get(words[0], (words[:1], ()))
    command, *rest = [*before, *words[1:], *behind]
    if command == "show":
        rest = [*(SHOWN.get(word, word) for word in rest[:1]), *rest[1:]]
    of_sweeps: tuple[list[str], ...] = ([], ["run"], ["show"], ["-h"], ["--help"])
    if command == "sweep" and rest[:1] not in of_sweeps:
        return [command, "run", *rest]
    places = leading(rest)
    if command == "check" and len(places) > 1 and re.match("[0-9]+x", places[-1]):
        number = max(1, len(places) - 2)  # of files
        model = [word for name in places[number:-1] for word in ("--model", name)]
        given = [*places[:number], *model, "--cluster", places[-1]]
        return [command, *given, *rest[len(places) :]]
    if _is_question([command, *rest], commands):
        command, rest = "plan", [command, *rest]
    if command in (*QUESTIONS, *CLUSTER_BEHIND):
        model, rest = _taken("--model", rest) if command in QUESTIONS else ([], rest)
        cluster, rest = _taken("--cluster", rest)
        number = CLUSTER_BEHIND.get(command, 1 - len(model))
        place = number if len(leading(rest)) >= number else len(rest)
        rest = [*model, *rest[:place], *cluster, *rest[place:]]
    return [command, *rest]


def _is_question(words: Sequence[str], commands: Collection[str]) -> bool:
    """Return True if the first word is a model, not a command, a former or a misspelt one."""
    places = leading(words)
    if len(places) < 2:
        return words[0] == "--model"
    return not get_close_matches(places[0], [*commands, *OTHER_COMMANDS])


def leading(words: Sequence[str]) -> list[str]:
    """The words before the first option."""
    return list(takewhile(lambda word: not word.startswith("-"), words))


def _taken(option: str, words: list[str]) -> tuple[list[str], list[str]]:
    """The value of an option, if it stands there, and the other words."""
    if option not in words[:-1]:
        return [], words
    place = words.index(option)
    return [words[place + 1]], [*words[:place], *words[place + 2 :]]


def meant_word(option: str, text: str, known: Collection[str]) -> str:
    """Return the known value that a word means, whatever its case and hyphens; else the word."""
    others = OTHER_FORMATS if option in ("--emit", "--to") else OTHER_WORDS.get(option, {})
    if text in known:
        return text
    plain = text.strip().lower().replace("_", "-")
    spellings = {each.replace("_", "-"): each for each in known}
    meant = spellings.get(plain) or others.get(plain)
    return meant if meant in known else text  # type: ignore[return-value]


def elsewhere(option: str) -> str:
    """What an option of other programs is here; empty where none is known."""
    same, of_cluster = SAME_OPTIONS.get(option), option in OF_CLUSTER
    told = "the cluster says it: NUMBERxNAME" if of_cluster else UNKNOWN_OPTIONS.get(option)
    return told or (f"{same.format('...')} says it here" if same else "")


def length(text: str) -> int:
    """Read a number of tokens such as ``8192``, ``8k`` (8,192) or ``1M`` (1,048,576)."""
    is_short = len(text) <= MAX_COUNT_DIGITS
    match = re.match(r"^\s*(-?[0-9]{1,40})\s*([kKmM]?)\s*$", text) if is_short else None
    if match is None:
        raise ValueError(f"{brief(text)} is no length; allowed are such as 8192 or 8k")
    times = {"": 1, "k": 2**10, "m": 2**20}
    return int(match[1]) * times[match[2].lower()]


def seconds(text: str) -> float:
    """Read how long a search may take, in seconds."""
    found = number_in(text)
    if not 0.0 < found <= MAX_TIME_LIMIT_S:
        allowed = f"seconds above 0, at most {MAX_TIME_LIMIT_S:,.0f}"
        raise ValueError(f"must be {allowed}; given {brief(text)}")
    return found
