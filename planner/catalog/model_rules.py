"""Rules between the keys of a model file, each a function from raw data to findings.

They read the file before it is validated, so that they can be reported together with
unknown keys and wrong types; a rule whose keys are missing or malformed stays silent.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from planner.errors import Problem

Raw: TypeAlias = Mapping[str, Any]


class Finding(NamedTuple):
    """A broken rule: the key to change, what is wrong with it, what it was, what it may be."""

    key: str
    what: str
    given: object
    allowed: object

    def problem(self, where: str) -> Problem:
        """Return the problem shown to the user."""
        message = f"{self.what}; given {self.given}, allowed {self.allowed}"
        return Problem(where=where, key=self.key, message=message)


def _int(raw: Raw, *path: str) -> int | None:
    """Return the non-negative whole number at this path, or None."""
    value: Any = raw
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    usable = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return int(value) if usable else None


MAX_LISTED = 100_000
"""Larger numbers of heads are a mistake; looking for their divisors takes long."""


def _divisors(number: int) -> str:
    if number > MAX_LISTED:
        return "its divisors"
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)


def check_kv_heads_divide_heads(raw: Raw) -> Iterator[Finding]:
    """Check that every key/value head serves the same number of query heads."""
    heads, kv_heads = _int(raw, "num_heads"), _int(raw, "num_kv_heads")
    if heads and kv_heads and heads % kv_heads:
        what = f"does not divide num_heads = {heads}"
        yield Finding("num_kv_heads", what, kv_heads, _divisors(heads))


def check_heads_divide_hidden_size(raw: Raw) -> Iterator[Finding]:
    """Check that, without head_dim, the hidden size is cut evenly into heads."""
    heads, hidden = _int(raw, "num_heads"), _int(raw, "hidden_size")
    given = raw.get("head_dim") is not None or isinstance(raw.get("mla"), Mapping)
    if heads and hidden and not given and hidden % heads:
        what = f"does not divide hidden_size = {hidden} and head_dim is left out"
        yield Finding("num_heads", what, heads, "a divisor of hidden_size, or give head_dim")


def check_top_k(raw: Raw) -> Iterator[Finding]:
    """Check that a token chooses no more experts than there are."""
    experts, top_k = _int(raw, "moe", "num_experts"), _int(raw, "moe", "top_k")
    if experts and top_k and top_k > experts:
        what = f"is more than num_experts = {experts}"
        yield Finding("moe.top_k", what, top_k, f"1 to {experts}")


def check_some_layer_has_experts(raw: Raw) -> Iterator[Finding]:
    """Check that the leading dense layers and the step leave a layer with experts."""
    if not isinstance(raw.get("moe"), Mapping):
        return
    layers = _int(raw, "num_layers")
    leading = _int(raw, "moe", "num_leading_dense_layers") or 0
    step = _int(raw, "moe", "moe_layer_step") or 1
    if not layers:
        return
    if leading >= layers:
        what = f"leaves none of {layers} layers with experts"
        yield Finding("moe.num_leading_dense_layers", what, leading, f"0 to {layers - 1}")
    elif step > layers - leading:
        what = f"leaves none of the last {layers - leading} layers with experts"
        yield Finding("moe.moe_layer_step", what, step, f"1 to {layers - leading}")


def check_shared_experts(raw: Raw) -> Iterator[Finding]:
    """Check that a width of shared experts comes with shared experts."""
    width, shared = _int(raw, "moe", "shared_ffn_size"), _int(raw, "moe", "num_shared_experts")
    if width and not shared:
        what = "needs num_shared_experts of 1 or more"
        yield Finding("moe.shared_ffn_size", what, width, "leave it out")


def check_stacks(raw: Raw) -> Iterator[Finding]:
    """Check that a second stack is an encoder-decoder's, and has no experts."""
    architecture = raw.get("architecture", "decoder")
    second = raw.get("num_decoder_layers")
    if second is not None and architecture != "encoder-decoder":
        what = f"does not go with architecture {architecture}"
        yield Finding("num_decoder_layers", what, second, "only with encoder-decoder")
    if raw.get("moe") is not None and architecture == "encoder-decoder":
        what = "mixtures of experts are known for models of one stack only"
        yield Finding("architecture", what, architecture, "decoder, encoder, vision-encoder")


def check_vocabulary(raw: Raw) -> Iterator[Finding]:
    """Check that only a vision encoder has no vocabulary."""
    if _int(raw, "vocab_size") == 0 and raw.get("architecture") != "vision-encoder":
        what = "only a vision-encoder has no vocabulary"
        yield Finding("vocab_size", what, 0, "1 or more")


def check_learned_positions(raw: Raw) -> Iterator[Finding]:
    """Check that position rows go with ``position: learned`` and cover the sequence."""
    rows, length = _int(raw, "num_learned_positions"), _int(raw, "max_seq_len")
    position = raw.get("position", "rope")
    if rows and position != "learned":
        what = f"does not go with position {position}"
        yield Finding("num_learned_positions", what, rows, "only with position learned")
    if rows and length and rows < length:
        what = f"does not cover max_seq_len = {length}"
        yield Finding("num_learned_positions", what, rows, f"{length} or more")


def check_latent_attention(raw: Raw) -> Iterator[Finding]:
    """Check that latent attention's head size and number agree and that it has no biases."""
    if not isinstance(raw.get("mla"), Mapping):
        return
    nope, rope = _int(raw, "mla", "qk_nope_head_dim"), _int(raw, "mla", "qk_rope_head_dim")
    head_dim = _int(raw, "head_dim")
    if nope and rope and head_dim and head_dim != nope + rope:
        what = "is not mla.qk_nope_head_dim + mla.qk_rope_head_dim"
        yield Finding("head_dim", what, head_dim, nope + rope)
    heads, kv_heads = _int(raw, "num_heads"), _int(raw, "num_kv_heads")
    if heads and kv_heads and heads != kv_heads:
        yield Finding("num_kv_heads", "is not num_heads although mla is given", kv_heads, heads)
    if raw.get("qk_norm", "none") != "none":
        what = "does not go with mla, which has its own norms"
        yield Finding("qk_norm", what, raw["qk_norm"], "none")
    biases = raw.get("biases")
    for key in ("qkv", "attention_output"):
        if isinstance(biases, Mapping) and biases.get(key) is True:
            yield Finding(f"biases.{key}", "does not go with mla", "true", "false")


RULES: tuple[Callable[[Raw], Iterator[Finding]], ...] = (
    check_kv_heads_divide_heads,
    check_heads_divide_hidden_size,
    check_top_k,
    check_some_layer_has_experts,
    check_shared_experts,
    check_stacks,
    check_vocabulary,
    check_learned_positions,
    check_latent_attention,
)


def broken_rules(raw: Raw, where: str) -> list[Problem]:
    """Return one problem per finding of every rule."""
    return [finding.problem(where) for rule in RULES for finding in rule(raw)]
