"""Explanations of answers about nests: the nest as text, what was carried over, and the votes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measured_nests as law
import msgspec
import pytest
from nest_shapes import product

from embeddb.core.config import Config
from embeddb.core.records import WorkloadInfo
from embeddb.database import Database
from embeddb.explain.explain import explain
from embeddb.explain.explanation import Explanation, best_here, link_words, preparation
from embeddb.nests.nest_text import nest_text
from embeddb.nests.schedule import Schedule
from embeddb.ranking.recommendation import (
    Candidate,
    Recommendation,
    RecommendedNeighbour,
    TransferredSchedule,
    TransferredStep,
)
from embeddb.store import memory_store

ROWS = Schedule((0, 2, 1), (0, 0, 0), "outer").config
ROWS_HERE = Schedule((1, 2, 0), (0, 0, 0), "outer").config
STANDS = Schedule((0, 1, 2), (0, 0, 0), "outer").config


def step(text: str, made: str, reason: str = "") -> TransferredStep:
    return TransferredStep(text=text, target_text=made, reason=reason, matched=[("i", "i", 0.25)])


def carried(source_of: str, config: Config, source: Config, gain: float) -> TransferredSchedule:
    return TransferredSchedule(
        config=dict(config),
        pattern_id=source_of,
        name="near",
        source=dict(source),
        gain=gain,
        steps=[step("order i, k, j", "order i, k, j"), step("tile k by 64", "", "too large")],
    )


def answered(asked: Any, near: Any, **changes: Any) -> Recommendation:
    """`ROWS` of a product carried over to one whose loops are in another order, by hand."""
    made = Recommendation(
        id="r0123456789ab",
        pattern_id=asked.id,
        pattern_name=asked.name,
        platform=law.here().id,
        op="nest",
        link="neighbours",
        tuner="transfer",
        default=dict(STANDS),
        candidates=[Candidate(config=dict(ROWS_HERE), score=-1.0, origin="1 neighbour")],
        neighbours=[RecommendedNeighbour(near.id, law.here().id, near.name, 1.0, 0.5, 1.0, "nest")],
        confidence="low",
        warnings=[],
        rejected={},
        features={},
        evidence_op="nest",
        featurizer="nest-stats",
        featurizer_version="1",
        generation=1,
        seed=0,
        calls=None,
        simulated=False,
        noise=0.0,
        created=0.0,
        pattern=WorkloadInfo.whole(asked),
        transfers=[carried(near.id, ROWS_HERE, ROWS, 4.0)],
        nest=nest_text(asked).decode(),
    )
    return msgspec.structs.replace(made, **changes)


def _plain(told: Explanation) -> Any:
    """Its document as JSON has it: permutations are lists."""
    return msgspec.json.decode(msgspec.json.encode(told.document()))


@pytest.fixture
def told() -> Explanation:
    store, near = memory_store(), product("ijk", 64)
    store.put_platform(law.here())
    store.put_structure(near, WorkloadInfo.whole(near))
    store.append(law.runs_of(near, law.here(), 60))
    return explain(answered(law.asked(), near), store)


def test_the_nest_is_read_from_the_answer_itself(told: Explanation) -> None:
    """It need not be in the store."""
    view = told.pattern.nest
    assert view is not None and told.pattern.kind == "nest"
    assert view.loops == [f"for {at} from 0 to before 96" for at in "jik"]
    assert view.body == ["C[i][j] += A[i][k] * B[k][j]"]
    assert view.answer == ["i: 96 turns, in parallel (static)", "k: 96 turns", "j: 96 turns"]


def test_an_old_answer_without_the_text_has_the_nest_of_the_store() -> None:
    store, near, asked = memory_store(), product("ijk", 64), law.asked()
    made = answered(asked, near, nest="")
    assert explain(made, store).pattern.nest is None
    store.put_structure(asked, WorkloadInfo.whole(asked))
    view = explain(made, store).pattern.nest
    assert view is not None and view.loops[0].startswith("for j")


def test_what_the_answer_is_on_the_neighbour_is_the_schedule_that_became_it(
    told: Explanation,
) -> None:
    (near,) = told.neighbours
    assert near.answer_gain == pytest.approx(4.0)  # that of i, k, j there; by slot it would be 1
    assert near.best_gain == pytest.approx(6.0)  # with blocks
    assert dict(near.named) == {"DEPTH": 3, "TRIP_1": 64, "TRIP_2": 64, "TRIP_3": 64}


def test_neighbours_vote_for_what_their_fastest_became_here(told: Explanation) -> None:
    votes = {a.parameter: a for a in told.agreement}
    assert votes["order_3"].votes == {"2 3 1": 1.0} and votes["order_3"].answer == "2 3 1"
    assert best_here(told.recommendation, told.neighbours[0]) == dict(ROWS_HERE)
    assert (
        best_here(
            told.recommendation, msgspec.structs.replace(told.neighbours[0], pattern_id="0" * 32)
        )
        == {}
    )


def test_transfers_are_those_of_the_answer(told: Explanation) -> None:
    assert [one.gain for one in told.transfers] == [4.0]
    made = told.recommendation
    other = carried(made.transfers[0].pattern_id, STANDS, ROWS, 9.0)
    more = msgspec.structs.replace(made, transfers=[*made.transfers, other])
    again = msgspec.structs.replace(told, recommendation=more)
    assert [one.gain for one in again.transfers] == [4.0]
    document = again.document()
    assert len(document["transfers"]) == 2 and document["pattern"]["kind"] == "nest"


def test_it_survives_its_json(told: Explanation) -> None:
    again = msgspec.json.decode(msgspec.json.encode(told), type=Explanation)
    assert _plain(again) == _plain(told)


@pytest.mark.parametrize(
    ("link", "matrix", "nest"),
    [
        ("measured", "measured on this very matrix", "measured on this very nest"),
        ("neighbours", "measured on similar matrices", "measured on similar nests"),
        ("model", "predicted by the cost model", "predicted by the cost model"),
        ("{one}", "{one}", "{one}"),
    ],
)
def test_links_in_words_of_each_kind(link: str, matrix: str, nest: str) -> None:
    assert (link_words(link), link_words(link, "nest")) == (matrix, nest)


def test_a_nest_has_nothing_to_prepare() -> None:
    assert preparation(None, measured=False, kind="nest") == preparation(
        100.0, measured=True, kind="nest"
    )
    assert "--calls" in preparation(None, measured=False)


# -- from a database -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield law.make(tmp_path_factory.mktemp("nests") / "nests.db")


def test_looking_deeper_tells_parameters_and_moves_nothing(folder: Path) -> None:
    with Database.open(folder, readonly=True) as db:
        made = db.query(law.asked(), platform=law.here(), op=law.OP, why=True)
    assert made.link == "neighbours" and made.transfers
    assert made.insight.deep and not made.insight.moves and not made.insight.attention
    values = {e.value for e in made.insight.effects if e.parameter == "order_3"}
    assert "2 3 1" in values


def test_every_neighbour_with_a_schedule_tells_what_its_fastest_became(folder: Path) -> None:
    with Database.open(folder, readonly=True) as db:
        made = db.query(law.asked(), platform=law.here(), op=law.OP)
        told = explain(made, db.store)
    carried_over = [n for n in told.neighbours if best_here(made, n)]
    assert len(carried_over) == len(told.neighbours) > 2
    assert all(sum(a.votes.values()) == pytest.approx(1.0) for a in told.agreement)


def test_a_nest_of_a_depth_that_nobody_ran_is_answered(folder: Path) -> None:
    """No configuration of a neighbour is legal as it is: all of them are carried over."""
    from nest_shapes import contraction

    with Database.open(folder, readonly=True) as db:
        made = db.query(contraction(), platform=law.here(), op=law.OP)
    assert made.link in ("neighbours", "static-best") and made.candidates
    assert all("order_3" not in c.config for c in made.candidates)


OFFLINE = """
    import socket, sys

    class Missing:
        def find_spec(self, name, path=None, target=None):
            heavy = {"faiss", "scipy", "torch", "torch_geometric", "sklearn", "pycparser"}
            if name.partition(".")[0] in heavy:
                raise ModuleNotFoundError(f"{name} is not here")

    sys.meta_path.insert(0, Missing())
    socket.socket = None

    import msgspec
    from embeddb.database import Database

    with Database.open(sys.argv[1], readonly=True) as db:
        print(msgspec.json.encode(db.explain(sys.argv[2])).decode())
"""


def test_offline_by_construction(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy.db")
    with Database.open(copy) as db:
        made = db.query(law.asked(), platform=law.here(), op=law.OP)
        told = db.explain(made.id)
    shutil.rmtree(copy / "index")
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(OFFLINE), str(copy), made.id],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    again = msgspec.json.decode(run.stdout, type=Explanation)
    assert again.pattern.nest == told.pattern.nest and told.pattern.nest is not None
    assert _plain(again) == _plain(told)


def test_proposals_that_were_measured_are_said_to_be() -> None:
    assert link_words("neighbours", then_measured=True).endswith(", then measured here")
    assert "then" not in link_words("measured", then_measured=True)
