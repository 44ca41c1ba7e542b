"""Links, pipes and devices in folders that came from somewhere else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from attack.hostile import (
    CAMPAIGN_PLANTS,
    CAMPAIGN_VERBS,
    DB_PLANTS,
    DB_VERBS,
    LOG_PLANTS,
    LOG_VERBS,
    Plant,
    planted,
    tried,
)
from attack.verbs import Board

ALL = [
    (kind, what, plant, verb, words)
    for kind, plants, verbs in (
        ("db", DB_PLANTS, DB_VERBS),
        ("campaign", CAMPAIGN_PLANTS, CAMPAIGN_VERBS),
        ("log", LOG_PLANTS, LOG_VERBS),
    )
    for what, plant in plants.items()
    for verb, words in verbs.items()
]


@pytest.mark.parametrize("what", DB_PLANTS)
def test_a_question_to_a_database_from_elsewhere(board: Board, tmp_path: Path, what: str) -> None:
    assert _faults(board, tmp_path, DB_PLANTS[what], DB_VERBS["query"]) == []


@pytest.mark.parametrize("what", CAMPAIGN_PLANTS)
def test_a_campaign_from_elsewhere(board: Board, tmp_path: Path, what: str) -> None:
    assert _faults(board, tmp_path, CAMPAIGN_PLANTS[what], CAMPAIGN_VERBS["run"]) == []


@pytest.mark.parametrize("what", LOG_PLANTS)
def test_a_log_from_elsewhere(board: Board, tmp_path: Path, what: str) -> None:
    verbs = {"export": "import", "import": "import", "matri": "index", "platform": "platform"}
    verb = next((verb for word, verb in verbs.items() if word in what), "ingest")
    assert _faults(board, tmp_path, LOG_PLANTS[what], LOG_VERBS[verb]) == []


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "what"), sorted({(kind, what) for kind, what, *_ in ALL}))
def test_every_verb_that_opens_a_folder(board: Board, tmp_path: Path, kind: str, what: str) -> None:
    found = {
        verb: faults
        for one, other, plant, verb, words in ALL
        if (one, other) == (kind, what) and (faults := _faults(board, tmp_path, plant, words))
    }
    assert found == {}


def _faults(board: Board, folder: Path, plant: Plant, words: str) -> list[str]:
    return list(tried(planted(board, folder / "site", plant), words))


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    from attack.kill import warm

    warm()
    yield Board(tmp_path_factory.mktemp("board") / "board").make()
