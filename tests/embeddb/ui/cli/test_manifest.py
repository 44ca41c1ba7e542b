from __future__ import annotations

from pathlib import Path

import pytest

from embeddb.core.errors import InputError
from embeddb.ui.cli.arguments import families


def test_families_of_a_manifest(tmp_path: Path) -> None:
    file = tmp_path / "M.csv"
    file.write_text("name,family\na,x\nb,\na,x\nc,y\n")
    assert families(str(file)) == {"a": "x", "c": "y"} and families("") == {}
    file.write_text("name,family\na,x\nc,y\na,z\n")
    with pytest.raises(InputError, match="a is of family z, and of x above") as caught:
        families(str(file))
    assert caught.value.line == 4
