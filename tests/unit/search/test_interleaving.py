import numpy as np

from planner.search.interleaving import interleaved_layers, missing_layers


def test_equal_chunks_are_missing_nothing() -> None:
    assert missing_layers(96, np.array([8]), np.array([12])).tolist() == [0]


def test_loss_and_embedding_may_stand_in_for_a_layer_each() -> None:
    # Llama 3.1 405B: 126 layers on 16 stages of 8 chunks, both end chunks one layer short.
    assert missing_layers(126, np.array([16, 127, 5]), np.array([8, 1, 3])).tolist() == [2, 1, 3]


def test_the_end_stages_are_shorter() -> None:
    layers = interleaved_layers(126, 16, np.array([8]))[0]
    assert layers.tolist() == [7, *[8] * 14, 7]
    assert interleaved_layers(7, 4, np.array([2]))[0].tolist() == [2, 2, 2, 1]
