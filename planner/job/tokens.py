"""What a job reads of its data set."""

from planner.units import Array

SMALL_VOCABULARY = 65_500
"""Below it token numbers are kept in 16 bits: Megatron-LM, DType.optimal_dtype of
megatron/core/datasets/indexed_dataset.py."""


def token_bytes(vocab_size: int) -> int:
    """Bytes of a stored token: 2 of vocabularies below SMALL_VOCABULARY, else 4.

    >>> token_bytes(50_257), token_bytes(128_256)
    (2, 4)
    """
    return 2 if vocab_size < SMALL_VOCABULARY else 4


def input_bytes_per_s(tokens_per_s: Array | float, bytes_per_token: Array | float) -> Array | float:
    """Bytes per second read of the data set: ``tokens_per_s · bytes_per_token``.

    Text that was tokenised before, every token read once; ranks of tensor, pipeline and context
    parallelism take it from one of them. Excludes images, sound, and reading in whole pages.

    >>> f"{input_bytes_per_s(3.1e6, 4) / 1e6:.1f} MB/s"
    '12.4 MB/s'
    """
    return tokens_per_s * bytes_per_token
