"""The list of faults fits the tree: a change that moves a line moves the fault, too."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.faults.planted import ROOT, faults

FAULTS = faults()
ROOMS = [
    folder
    for top in ("engine", "traces", "app")
    for folder in sorted((ROOT / top).iterdir())
    if folder.is_dir() and any(folder.glob("*.py"))
]


def test_each_fault_has_a_name_of_its_own():
    assert [name for name, count in Counter(f.name for f in FAULTS).items() if count > 1] == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted_in_one_place(fault):
    assert fault.places() == 1, f"{fault.file} has {fault.places()} times: {fault.old}"
    assert fault.new != fault.old


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_tests_of_a_fault_exist(fault):
    assert fault.tests
    for test in fault.tests:
        path, *names = test.partition("[")[0].split("::")
        assert (ROOT / path).exists()
        for name in names:
            assert re.search(
                rf"^ *(?:async )?(?:def|class) {name}\b", (ROOT / path).read_text(), re.MULTILINE
            )


@pytest.mark.parametrize(
    "room",
    [*(f"{room.relative_to(ROOT)}/" for room in ROOMS), "assets/viewer/", "assets/app.js", "docs/"],
)
def test_each_room_has_a_fault(room):
    assert any(fault.file.startswith(room) for fault in FAULTS)
