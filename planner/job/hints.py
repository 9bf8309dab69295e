"""Hints about batch and learning rate, from scaling laws: where to begin, never a promise."""

import numpy as np

from planner.units import Array


def critical_batch_tokens(total_tokens: Array | float) -> Array:
    """Tokens of a batch from which on steps are saved badly: ``22.91 · tokens^0.47``.

    There a fifth more steps are needed than if twice the batch halved them. Follows the data, and
    hardly the model's size. Source: Zhang et al. 2024, "How does critical batch size scale in
    pre-training", arXiv 2410.21676; fitted on 85 million to 1.2 billion parameters and at most
    tens of billions of tokens of C4, so beyond a trillion tokens it is far extrapolated. With 20
    tokens for each of N parameters it is their 93.20 · N^0.47:

    >>> f"{critical_batch_tokens(20 * 302e6) / (93.20 * 302e6**0.47):.2f}"
    '1.00'

    Llama 3 405B, of 15.6T tokens, went up to batches of 16M tokens:

    >>> f"{critical_batch_tokens(15.6e12) / 1e6:.0f}M tokens"
    '36M tokens'
    """
    return np.asarray(22.91 * np.power(total_tokens, 0.47))


def extra_tokens_fraction(
    batch_tokens: Array | float, critical_tokens: Array | float
) -> Array | float:
    """Further tokens for the same loss, over those of small batches: ``0.2 · batch / critical``.

    On ``(S / S_min - 1) · (E / E_min - 1) = 1`` the examples E grow by ``batch / B_noise``, B_noise
    being E_min / S_min. Source: McCandlish et al. 2018, arXiv 1812.06162, section 2.3. The critical
    batch is here the one that costs a fifth more (critical_batch_tokens), so B_noise is five times
    as large.

    >>> f"{extra_tokens_fraction(36e6, 36e6):.0%}, {extra_tokens_fraction(4e6, 36e6):.1%}"
    '20%, 2.2%'
    """
    return 0.2 * batch_tokens / critical_tokens


def step_batch_tokens(total_tokens: Array | float) -> Array:
    """Tokens of the batch with the least loss of a token budget: ``0.58 · tokens^0.571``.

    Source: Step Law, arXiv 2503.04715; fitted up to a hundred billion tokens.

    >>> f"{step_batch_tokens(15.6e12) / 1e6:.0f}M tokens"
    '20M tokens'
    """
    return np.asarray(0.58 * np.power(total_tokens, 0.571))


def step_learning_rate(num_params: Array | float, total_tokens: Array | float) -> Array:
    """Peak learning rate of AdamW at the best batch: ``1.79 · N^-0.713 · tokens^0.307``.

    N without embeddings. Source: Step Law, arXiv 2503.04715: 3,700 models of 60 million
    to a billion parameters. Llama 3 405B took 8e-5 (arXiv 2407.21783, table 3):

    >>> f"{step_learning_rate(401e9, 15.6e12):.1e}"
    '1.1e-04'
    """
    return np.asarray(1.79 * np.power(num_params, -0.713) * np.power(total_tokens, 0.307))


def deepseek_batch_tokens(flops: Array | float) -> Array:
    """Tokens of the best batch by training's FLOPs: ``0.2920 · C^0.3271``.

    C without embeddings. Source: DeepSeek LLM, arXiv 2401.02954, section 3.1, equation 1; fitted
    on 1e17 to 2e19 FLOPs.

    >>> f"{deepseek_batch_tokens(6 * 401e9 * 15.6e12) / 1e6:.0f}M tokens"
    '68M tokens'
    """
    return np.asarray(0.2920 * np.power(flops, 0.3271))


def deepseek_learning_rate(flops: Array | float) -> Array:
    """Peak learning rate of AdamW at that batch: ``0.3118 · C^-0.1250``.

    Source: as deepseek_batch_tokens. Of Llama 3.1 8B, which took 3e-4:

    >>> f"{deepseek_learning_rate(6 * 7.0e9 * 15.6e12):.1e}"
    '3.3e-04'
    """
    return np.asarray(0.3118 * np.power(flops, -0.1250))


def at_batch(
    learning_rate: Array | float, batch_tokens: Array | float, best_tokens: Array | float
) -> Array:
    """The learning rate for another batch: ``rate · sqrt(batch / best)``.

    The rule of Adam's scaled gradients: Malladi et al. 2022, arXiv 2205.10287; plain SGD scales
    in proportion (Goyal et al. 2017, arXiv 1706.02677). Holds below the critical batch.

    >>> f"{at_batch(1e-4, 4e6, 16e6):.1e}"
    '5.0e-05'
    """
    return np.asarray(learning_rate * np.sqrt(np.divide(batch_tokens, best_tokens)))
