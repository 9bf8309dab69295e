"""Energy and carbon of a job."""

from planner.units import Array

W_PER_KW = 1000.0
KG_PER_T = 1000.0
G_PER_KG = 1000.0
DRAWN_OF_NODE = 0.82
"""Of a node's rated power: 8.4 of 10.2 kW at most while 8 H100 trained (arXiv 2412.08602)."""
DRAWN_OF_BOARD = 1.0
"""Of the boards' rated power alone, as model cards reckon: LLaMA (arXiv 2302.13971, section 6)."""
USUAL_PUE = 1.1
"""Power of a data centre over that of its machines: LLaMA and Google's (arXiv 2302.13971, section
6; arXiv 2104.10350, table 4). The mean of all data centres is 1.56 (Uptime Institute, 2024)."""
GRID_G_PER_KWH = 445.0
"""CO2 of the world's electricity in 2024 (IEA, Electricity 2025, emissions)."""


def energy_kwh(
    gpu_hours: Array | float,
    rated_w_per_gpu: Array | float,
    drawn_fraction: Array | float = 1.0,
    pue: Array | float = 1.0,
) -> Array | float:
    """kWh: ``gpu_hours · rated_w_per_gpu · drawn_fraction / 1000 · pue``.

    ``rated_w_per_gpu`` is a GPU's board, or its part of the node, of which ``drawn_fraction`` is
    drawn in the mean; ``pue`` is the data centre's power over that of its machines. Where the
    board alone is rated, hosts are left out; network and storage always. Source: Patterson et al.
    2021, arXiv 2104.10350. Off by 27 to 37 % where power is taken as rated
    (arXiv 2506.14551).

    BLOOM, 1,082,990 hours of A100 at 400 W, 433 MWh (Luccioni et al., arXiv 2211.02001):

    >>> f"{energy_kwh(1_082_990, 400):,.0f} kWh"
    '433,196 kWh'

    GPT-3, 10,000 V100 for 14.8 days at 330 W each, PUE 1.1: 1,287 MWh (arXiv 2104.10350, table 4):

    >>> f"{energy_kwh(10_000 * 14.8 * 24, 330, 1.0, 1.1) / 1e3:,.0f} MWh"
    '1,289 MWh'

    LLaMA-65B, 1,022,362 hours of A100, PUE 1.1: 449 MWh (arXiv 2302.13971, table 15):

    >>> f"{energy_kwh(1_022_362, 400, 1.0, 1.1) / 1e3:,.0f} MWh"
    '450 MWh'
    """
    return gpu_hours * rated_w_per_gpu * drawn_fraction / W_PER_KW * pue


def carbon_t(kwh: Array | float, grid_g_per_kwh: Array | float) -> Array | float:
    """Tonnes of CO2 equivalent: ``kwh · grid_g_per_kwh / 1e6``.

    Of the electricity alone, where it is made; machines' manufacture, heat and water are left out,
    and certificates count for nothing. Source: arXiv 2104.10350.

    BLOOM at 57 g/kWh in France: 24.69 t (arXiv 2211.02001):

    >>> f"{carbon_t(433_196, 57):.2f} t"
    '24.69 t'

    Llama 2 70B, 1,720,320 hours of A100 at 400 W: 291.42 t (arXiv 2307.09288, table 2), which is

    >>> f"{291.42e6 / energy_kwh(1_720_320, 400):.0f} g/kWh, PUE within"
    '423 g/kWh, PUE within'

    Llama 3.1 405B, 30.84M hours of H100 at 700 W: 8,930 t by location (its model card):

    >>> f"{8930e6 / energy_kwh(30.84e6, 700):.0f} g/kWh, PUE within"
    '414 g/kWh, PUE within'
    """
    return kwh * grid_g_per_kwh / (G_PER_KG * KG_PER_T)
