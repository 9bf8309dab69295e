"""The class of a layer that FSDP wraps, by the family of the model (transformers 5)."""

from planner.formats.settings import Settings, word

CLASSES = {
    "bert": "BertLayer",
    "bloom": "BloomBlock",
    "deepseek-v2": "DeepseekV2DecoderLayer",
    "deepseek-v3": "DeepseekV3DecoderLayer",
    "falcon": "FalconDecoderLayer",
    "gemma": "GemmaDecoderLayer",
    "gemma2": "Gemma2DecoderLayer",
    "gemma3": "Gemma3DecoderLayer",
    "gpt2": "GPT2Block",
    "gpt-j": "GPTJBlock",
    "gpt-neox": "GPTNeoXLayer",
    "gpt-oss": "GptOssDecoderLayer",
    "llama1": "LlamaDecoderLayer",
    "llama2": "LlamaDecoderLayer",
    "llama3": "LlamaDecoderLayer",
    "llama3.1": "LlamaDecoderLayer",
    "llama3.3": "LlamaDecoderLayer",
    "mistral": "MistralDecoderLayer",
    "mixtral": "MixtralDecoderLayer",
    "mpt": "MptBlock",
    "olmo2": "Olmo2DecoderLayer",
    "opt": "OPTDecoderLayer",
    "phi": "PhiDecoderLayer",
    "pythia": "GPTNeoXLayer",
    "qwen2.5": "Qwen2DecoderLayer",
}
"""Families of which every model has this one class."""


def of_another_model(settings: Settings, key: str, family: object) -> str:
    """What is wrong with the classes that a file wraps; empty where nothing is."""
    own = CLASSES.get(str(family))
    given = [name.strip() for name in word(settings, key, "").split(",") if name.strip()]
    if own is None or not given or own in given or not set(given) <= {*CLASSES.values()}:
        return ""
    return f"the model's layers are {own}; given {', '.join(given)}, of which it has none"
