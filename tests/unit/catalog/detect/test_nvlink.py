import pytest

from planner.catalog.detect.nvlink import Joined, joined, link_gb_per_s, most_links
from planner.catalog.detect.observation import Links
from planner.catalog.hardware import check_accelerator, find_file
from planner.catalog.hardware_file import AcceleratorFile
from planner.documents.yaml_text import load_yaml


def accelerator(name: str) -> AcceleratorFile:
    path = find_file("accelerators", name)
    return check_accelerator(load_yaml(path), str(path))


def matrix(size: int, links: dict[tuple[int, int], int]) -> Links:
    return Links(
        pairs=tuple(
            tuple(links.get((i, j), links.get((j, i), 0)) for j in range(size)) for i in range(size)
        )
    )


def every_pair(size: int, count: int) -> Links:
    return matrix(size, {(i, j): count for i in range(size) for j in range(i)})


@pytest.mark.parametrize(
    ("name", "links", "rate"),
    [
        ("p100-sxm2-16", 4, 20),
        ("v100-sxm2-32", 6, 25),
        ("a100-sxm-40", 12, 25),
        ("a800-sxm-80", 8, 25),
        ("h100-sxm", 18, 25),
        ("h800-sxm", 8, 25),
        ("b200-sxm", 18, 50),
        ("rtx3090", 4, 14.0625),
    ],
)
def test_links_of_an_accelerator_times_their_rate_is_its_rate(
    name: str, links: int, rate: float
) -> None:
    file = accelerator(name)
    assert (most_links(file), link_gb_per_s(file)) == (links, rate)


@pytest.mark.parametrize("name", ["l40s", "mi300x"])
def test_accelerators_without_nvlink_have_no_link_rate(name: str) -> None:
    assert link_gb_per_s(accelerator(name)) is None


def test_more_links_than_a_gpu_has_are_paths_through_a_switch() -> None:
    assert joined(every_pair(8, 12), 12) == Joined(group=8, links=12, topology="switch")
    assert joined(every_pair(4, 4), 12) == Joined(group=4, links=12, topology="fully_connected")


def test_switches_a_file_names_need_no_guess() -> None:
    links = Links(pairs=((0, 0), (0, 0)), to_switch=18)
    assert joined(links, 18) == Joined(group=2, links=18, topology="switch")


def test_pairs_are_groups() -> None:
    links = matrix(4, {(0, 1): 12, (2, 3): 12})
    assert joined(links, 12) == Joined(group=2, links=12, topology="fully_connected")


def test_a_ring_is_a_ring() -> None:
    links = matrix(4, {(0, 1): 2, (1, 2): 2, (2, 3): 2, (3, 0): 2})
    assert joined(links, 6) == Joined(group=4, links=4, topology="ring")


def test_no_links_are_groups_of_one() -> None:
    found = joined(every_pair(4, 0), 12)
    assert found is not None
    assert (found.group, found.links) == (1, 0)


@pytest.mark.parametrize(
    "links",
    [
        matrix(3, {(0, 1): 4}),
        matrix(4, {(0, 1): 4, (2, 3): 2}),
        matrix(4, {(0, 1): 1, (1, 2): 1, (2, 3): 1, (3, 0): 1, (0, 2): 1}),
        matrix(3, {(0, 1): 12, (1, 2): 12, (0, 2): 11}),
    ],
)
def test_shapes_that_are_not_known_are_not_guessed(links: Links) -> None:
    assert joined(links, 12) is None
