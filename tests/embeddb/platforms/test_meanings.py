"""Every parameter of a platform that ships says what it means."""

from __future__ import annotations

import pytest

from embeddb.platforms.platform import builtin_platforms, load_platform


@pytest.mark.parametrize("name", sorted(builtin_platforms()))
def test_every_parameter_has_a_meaning(name: str) -> None:
    platform = load_platform(name)
    params = {p.name for space in platform.kernels.values() for p in space.space.params}
    told = {key.partition("=")[0] for key in platform.meaning}
    assert params <= told, sorted(params - told)
