import pytest

from planner.catalog.detect.nccl_xml import parse_nccl_xml
from planner.catalog.detect.observation import Links, Nics, Slot
from planner.errors import InputError


def gpu(
    index: int, inside: str = "", slot: str = 'link_speed="16.0 GT/s PCIe" link_width="16"'
) -> str:
    return (
        f'<pci busid="0000:0{index}:00.0" class="0x030200" vendor="0x10de" device="0x20b0" {slot}>'
        f'<gpu dev="{index}" sm="80">{inside}</gpu></pci>'
    )


def system(*inside: str) -> str:
    return f'<system version="1"><cpu numaid="0">{"".join(inside)}</cpu></system>'


def link(target: str, count: object, tclass: str) -> str:
    return f'<nvlink target="{target}" count="{count}" tclass="{tclass}"/>'


def test_links_to_several_switches_add() -> None:
    inside = link("0000:c4:00.0", 5, "0x068000") + link("0000:c5:00.0", 4, "0x068000")
    seen = parse_nccl_xml(system(gpu(0, inside), gpu(1, inside)), "x")
    assert seen.links == Links(pairs=((0, 0), (0, 0)), to_switch=9)
    assert (seen.gpu, seen.num_gpus) == ("10de:20b0", 2)


def test_links_to_peers_stay_pairs_even_without_class() -> None:
    pair = (
        gpu(0, link("0000:01:00.0", 4, "0x030200")),
        gpu(1, '<nvlink target="0000:00:00.0" count="4"/>'),
    )
    assert parse_nccl_xml(system(*pair), "x").links == Links(pairs=((0, 4), (4, 0)), to_switch=0)


def test_a_peer_outside_the_file_is_neither_pair_nor_switch() -> None:
    seen = parse_nccl_xml(system(gpu(0, link("0000:99:00.0", 4, "0x030200"))), "x")
    assert seen.links is None


def test_files_without_nvlinks_tell_nothing_of_them() -> None:
    assert parse_nccl_xml(system(gpu(0), gpu(1)), "x").links is None


def test_bare_slots_of_gpus_count_as_gpus() -> None:
    slots = '<pci busid="1" class="0x030200" link_speed="16 GT/s" link_width="16"/>' * 2
    seen = parse_nccl_xml(system(slots), "x")
    assert (seen.num_gpus, seen.gpu) == (2, "")
    assert seen.slot == Slot(generation=4, lanes=16)


@pytest.mark.parametrize(
    "slot", ['link_speed="" link_width="0"', 'link_speed="8 GT/s" link_width="0"', ""]
)
def test_a_slot_of_width_zero_is_not_told(slot: str) -> None:
    assert parse_nccl_xml(system(gpu(0, slot=slot)), "x").slot is None


def test_the_display_of_a_server_is_no_gpu() -> None:
    display = '<pci busid="0000:0a:00.0" class="0x030000" vendor="0x1a03" device="0x2000"/>'
    seen = parse_nccl_xml(system(display, gpu(0)), "x")
    assert (seen.num_gpus, seen.gpu) == (1, "10de:20b0")
    with pytest.raises(InputError, match="no GPU in the file"):
        parse_nccl_xml(system(display), "x")


def nic(name: str, speed: object, attributes: str = 'class="0x020700" vendor="0x15b3"') -> str:
    net = f'<net name="{name}" port="1" speed="{speed}"/>'
    return f'<pci busid="9" {attributes}><nic>{net}</nic></pci>'


def test_interfaces_of_containers_are_no_ports() -> None:
    bridges = "".join(f'<net name="veth{n}" port="0" speed="10000"/>' for n in range(8))
    inside = f"<nic>{bridges}</nic>"
    note = "not counted: network interfaces in no slot: 8"
    seen = parse_nccl_xml(system(gpu(0), inside, nic("eth0", 1000, 'class="0x020000"')), "x")
    assert seen.nics == Nics(count=1, gbit_per_s=1, kind="ethernet")
    assert seen.notes == (note,)
    alone = parse_nccl_xml(system(gpu(0), inside), "x")
    assert (alone.nics, alone.notes) == (None, (note,))


def test_a_port_in_no_slot_that_tells_its_rate_is_counted() -> None:
    port = '<nic><net name="plugin" port="1" speed="200000"/></nic>'
    seen = parse_nccl_xml(system(gpu(0), port), "x")
    assert seen.nics == Nics(count=1, gbit_per_s=200)


def test_the_ports_that_carry_most_are_counted_and_others_named() -> None:
    seen = parse_nccl_xml(system(gpu(0), nic("a", 400000), nic("b", 400000), nic("c", 25000)), "x")
    assert seen.nics == Nics(count=2, gbit_per_s=400, kind="infiniband")
    assert seen.notes == ("not counted: 1 x 25 Gbit/s",)


def test_a_port_listed_twice_is_one_and_unknown_speeds_are_none() -> None:
    seen = parse_nccl_xml(system(gpu(0), nic("a", 200000), nic("a", 200000), nic("b", -1)), "x")
    assert seen.nics == Nics(count=1, gbit_per_s=200, kind="infiniband")


@pytest.mark.parametrize(
    ("attributes", "kind"),
    [
        ('class="0x020000" vendor="0x15b3"', "ethernet"),
        ('class="0x020000" vendor="0x1d0f"', "efa"),
        ('class="0x020000" vendor="0x17db"', "slingshot"),
        ("", ""),
    ],
)
def test_the_kind_of_a_port_is_that_of_its_device(attributes: str, kind: str) -> None:
    seen = parse_nccl_xml(system(gpu(0), nic("a", 100000, attributes)), "x")
    assert seen.nics is not None
    assert seen.nics.kind == kind


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<system>" + "<pci>" * 200 + "</pci>" * 200 + "</system>", "nested deeper than 64"),
        ("<system>" + "<pci/>" * 60_000 + "</system>", "more than 50,000 elements"),
        ('<!DOCTYPE s [<!ENTITY a "b">]><system>&a;</system>', "declares a document type"),
        ("<system>&a;</system>", "not XML"),
        ("<system><gpu></system>", "not XML"),
    ],
)
def test_hostile_or_broken_xml_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_nccl_xml(text, "x")


def test_uneven_links_to_switches_are_refused() -> None:
    one, other = link("f", 5, "0x068000"), link("f", 4, "0x068000")
    with pytest.raises(InputError, match=r"different numbers of links to switches: \[4, 5\]"):
        parse_nccl_xml(system(gpu(0, one), gpu(1, other)), "x")
