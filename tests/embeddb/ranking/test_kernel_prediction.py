"""The learned model among the answers about tiles: which tiles it is asked about, when it ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import measured_kernels as law
import pytest
from kernel_models import Knowing, held_out

from embeddb.core.config import Config
from embeddb.core.errors import ModelError
from embeddb.database import Database
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import default_of, space_of
from embeddb.ranking.build import build_query
from embeddb.ranking.kernel_prediction import MOST_TILES, predicted_tiles, tiles_of
from embeddb.ranking.query import Prediction
from embeddb.tensors.tensor_graph import TensorGraph


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    folder = law.make(tmp_path_factory.mktemp("kernels") / "kernels.db")
    with Database.open(folder, readonly=True) as opened:
        yield opened


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Any:
    def put(model: Any, note: str = "") -> Any:
        monkeypatch.setattr(Lookup, "graph_model", lambda *_: (model, note))
        return model

    return put


def ask(db: Database, kernel: TensorGraph | None = None, **options: Any) -> Any:
    return db.query(kernel or law.asked(), platform=law.here(), op=law.OP, k=10, **options)


def test_the_model_ranks_where_it_was_better(db: Database, use: Any) -> None:
    model = use(Knowing(held_out=held_out(), hidden={"tile": {"unrun_first": True}}))
    made = ask(db)
    assert (made.tuner, made.link, made.model) == ("rank", "model", "knows")
    assert made.model_featurizer == "operations"
    # Neighbours are judged, too: their default is kept, and often far from the best.
    known = ("nearer to their own", "of those by neighbours may be below")
    assert not [w for w in made.warnings[:-1] if not any(line in w for line in known)]
    space = space_of(law.here(), law.OP, law.asked())
    default = default_of(law.here(), law.OP, law.asked())
    (configs,) = model.asked[:1]
    assert configs[0] == default and len(configs) == len(set(configs)) <= MOST_TILES
    assert all(space.reason(config) is None for config in configs)
    # It found a tile that no neighbour ran, and of all it was asked about none is faster.
    took = {config: law.seconds(law.asked(), config) for config in configs}
    assert took[Config(made.best)] == min(took.values())
    query = build_query(db.index, law.asked(), law.here(), law.OP)
    assert set(configs) - set(query.vote.configs)


@pytest.mark.parametrize(
    ("judged", "tuner"),
    [
        (held_out(transfer=0.95), "transfer"),
        (held_out(both=0.95), "transfer-rank"),
        # Equal at 1: the default is always first.
        (held_out(0.7, 0.7, 0.7), "transfer"),
    ],
)
def test_what_was_best_on_held_out_families_answers(
    db: Database, use: Any, judged: dict, tuner: str
) -> None:
    use(Knowing(held_out=judged))
    assert ask(db).tuner == tuner


def test_of_equals_at_one_the_better_at_five(db: Database, use: Any) -> None:
    judged = held_out(0.7, 0.7, 0.7)
    judged["tile"]["rank"]["of_optimum@5"] = 0.9
    use(Knowing(held_out=judged))
    assert ask(db).tuner == "rank"


def test_the_guard_keeps_the_default_first(db: Database, use: Any) -> None:
    """Also that of what both say together, and where the card has none."""
    default = dict(default_of(law.here(), law.OP, law.asked()))
    for judged in (held_out(), held_out(both=0.95, guard=8.0)):
        use(Knowing(held_out=judged, calibration={"slope": 1.0, "floor": 0.1}))
        made = ask(db)
        assert made.best == default and made.model == "knows"
        assert made.candidates[1].config != default


def test_what_was_never_judged_does_not_rank(db: Database, use: Any) -> None:
    use(Knowing())
    made = ask(db)
    assert made.tuner == "transfer" and any("never judged" in line for line in made.warnings)
    for wrong in ({"rank": {"of_optimum@1": 2}}, {"rank": {"of_optimum@1": 1, "guard": -1}}):
        use(Knowing(held_out={"tile": wrong}))
        assert ask(db).tuner == "transfer"


def test_a_model_that_fails_is_no_reason_not_to_answer(db: Database, use: Any) -> None:
    class Broken(Knowing):
        def predict(self, *_: Any) -> Any:
            raise ModelError("predicts what is no number")

    use(Broken(held_out=held_out()))
    made = ask(db)
    assert made.tuner == "transfer" and any("no number" in line for line in made.warnings)
    use(None, "cost model kernels.safetensors is not used: it is damaged")
    assert any("damaged" in line for line in ask(db).warnings)


def test_a_kernel_known_by_name_only(db: Database, use: Any) -> None:
    use(Knowing(held_out=held_out()))
    query = build_query(db.index, law.asked(), law.here(), law.OP)
    told = predicted_tiles(replace(query, prediction=Prediction()), db.index, None)
    assert told is not None and not told.prediction.configs
    assert "by name only" in told.prediction.note


def test_large_kernels_are_asked_about_fewer_tiles(db: Database) -> None:
    query = build_query(db.index, law.asked(), law.here(), law.OP)
    few = tiles_of(query, 60)
    assert len(few) <= 60 and few[0] == query.default
    assert tiles_of(query) == tiles_of(query)


def test_why_says_which_operation_counts(db: Database, use: Any) -> None:
    use(Knowing(held_out=held_out()))
    made = ask(db, why=True)
    last = len(law.asked().operations) - 1
    assert made.insight.occluded_by == "model" and made.insight.occluded[0].place == last
    assert made.insight.occluded[0].what == law.asked().operations[last].opcode
    use(None)
    made = ask(db, why=True)
    assert made.insight.occluded_by == "sizes" and made.insight.occluded[0].moved > 0
    assert not made.insight.attention
