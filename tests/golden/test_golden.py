import pytest

from tests.golden.__main__ import changes, hashes_of, recorded
from tests.golden.outputs import GROUPS


@pytest.mark.parametrize("group", GROUPS)
def test_outputs_are_as_recorded(group: str):
    assert changes(recorded()[group], hashes_of(group)) == []
