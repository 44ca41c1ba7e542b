"""Statistics of nests in words and in their own unit; nests in a notebook."""

from __future__ import annotations

import numpy as np
import pytest
from measured_nests import HOSTILE, hostile
from nest_shapes import product

from embeddb.core.records import WorkloadInfo
from embeddb.featurizers.nest_stats import PLUGIN
from embeddb.featurizers.stats import PLUGIN as OF_MATRICES
from embeddb.ui.feature_words import feature_value, feature_words
from embeddb.ui.notebook import html_of


def test_every_statistic_has_words_of_its_own() -> None:
    names = PLUGIN().names
    words = [feature_words(name) for name in names]
    assert len(set(words)) == len(names)
    plain = {name for name, said in zip(names, words, strict=True) if name == said}
    assert plain == {"statements"}


def test_no_statistic_of_a_matrix_is_read_as_one_of_a_nest() -> None:
    assert not set(OF_MATRICES().names) & set(PLUGIN().names)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("log_points", "262,144"),
        ("log_trip_1", "64.0"),
        ("log_arrays", "3.00"),
        ("log_all_bytes", "49,152"),
        ("log_multiply", "1.00"),
        ("log_reuse", "64.0"),
        ("depth", "3.00"),
        ("share_f32", "1.00"),
    ],
)
def test_figures_are_themselves_and_not_their_logarithms(name: str, said: str) -> None:
    plug = PLUGIN()
    value = float(plug.embed(product(n=64))[plug.names.index(name)])
    told = feature_value(name, value).replace(",", "")
    assert float(told) == pytest.approx(float(said.replace(",", "")), rel=5e-3)


def test_figures_of_any_size_can_be_told() -> None:
    for name in PLUGIN().names:
        for value in (0.0, -1.0, 59.0, 1e30, float(np.finfo(np.float32).max)):
            assert feature_value(name, value)


def test_a_nest_in_a_notebook() -> None:
    shown = html_of(WorkloadInfo.of(product(n=64)))
    assert "nest: 64 x 64 x 64 turns" in shown and "unknown" not in shown
    assert HOSTILE not in html_of(WorkloadInfo.of(hostile()))
