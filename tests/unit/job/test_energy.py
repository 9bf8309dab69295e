"""Energy and carbon against what was published of real jobs."""

import numpy as np
import pytest

from planner.job.energy import carbon_t, energy_kwh


@pytest.mark.parametrize(
    ("gpu_hours", "watts", "pue", "mwh", "within"),
    [
        (1_082_990, 400.0, 1.0, 433.196, 1e-5),  # BLOOM: Luccioni et al., without overheads
        (10_000 * 14.8 * 24, 330.0, 1.1, 1287.0, 0.003),  # GPT-3: Patterson et al.
        (1_022_362, 400.0, 1.1, 449.0, 0.003),  # LLaMA-65B: its paper, table 15
        (82_432, 400.0, 1.1, 36.0, 0.01),  # LLaMA-7B: the same
        (809_472, 400.0, 1.1, 356.0, 0.001),  # OPT-175B: the same
    ],
)
def test_published_energies(
    gpu_hours: float, watts: float, pue: float, mwh: float, within: float
) -> None:
    assert energy_kwh(gpu_hours, watts, 1.0, pue) == pytest.approx(1e3 * mwh, rel=within)


@pytest.mark.parametrize(
    ("kwh", "grid", "tonnes", "within"),
    [
        (433_196, 57.0, 24.69, 1e-3),  # BLOOM in France
        (1_287_000, 429.0, 552.1, 1e-3),  # GPT-3: Patterson et al.
        (449_000, 385.0, 173.0, 1e-2),  # LLaMA-65B
    ],
)
def test_published_carbon(kwh: float, grid: float, tonnes: float, within: float) -> None:
    assert carbon_t(kwh, grid) == pytest.approx(tonnes, rel=within)


@pytest.mark.parametrize(
    ("gpu_hours", "watts", "tonnes"),
    [
        (1_720_320, 400, 291.42),  # Llama 2 70B
        (184_320, 400, 31.22),  # Llama 2 7B
        (30_840_000, 700, 8930),  # Llama 3.1 405B
        (7_000_000, 700, 2040),  # Llama 3.1 70B
        (1_460_000, 700, 420),  # Llama 3.1 8B
    ],
)
def test_model_cards_are_met_with_a_grid_like_that_of_the_united_states(
    gpu_hours: float, watts: float, tonnes: float
) -> None:
    implied = tonnes * 1e6 / float(energy_kwh(gpu_hours, watts))
    assert 405 < implied < 430


def test_parts_of_power_multiply_and_columns_broadcast() -> None:
    hours = np.array([1.0, 10.0])
    assert np.allclose(energy_kwh(hours, 1000.0, 0.5, 1.2), [0.6, 6.0])
