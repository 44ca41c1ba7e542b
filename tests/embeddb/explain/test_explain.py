"""Explanations: from the stored answer alone, by hand, and without anything that could be missing.

`python tests/embeddb/explain/test_explain.py` writes `tests/golden/explanation.json` anew.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import OP, band, fill, patterns, runs_of, tiny
from explained import IDS, A, B, C, by_hand

from embeddb.core.config import Config
from embeddb.core.errors import NothingFound
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.database import Database
from embeddb.explain.explain import explain, near_ties, novelty
from embeddb.explain.explanation import Explanation
from embeddb.ranking.recommendation import Recommendation, RecommendedNeighbour
from embeddb.store import memory_store

GOLDEN = Path(__file__).parents[2] / "golden" / "explanation.json"


@pytest.fixture
def told() -> Explanation:
    return explain(*by_hand())


def _document(told: Explanation) -> Any:
    def rounded(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.6g}")
        if isinstance(value, dict):
            return {k: rounded(v) for k, v in value.items()}
        return [rounded(v) for v in value] if isinstance(value, list) else value

    return rounded(told.document())


def test_the_golden_explanation(told: Explanation) -> None:
    """The keys in their order, too: it is what `--json` has printed since it was released."""
    assert json.dumps(_document(told)) == json.dumps(json.loads(GOLDEN.read_text()))


def test_what_each_neighbour_contributes(told: Explanation) -> None:
    first, second, third = told.neighbours
    assert (first.measured, first.failed, first.best) == (4, {"crash": 1}, dict(C))
    assert (first.best_gain, first.answer_gain) == (4.0, 4.0)
    assert (second.measured, second.best_gain, second.answer_gain) == (3, 3.0, 3.0)
    # the default never ran on the third, so nothing is known to be a gain
    assert (third.best, third.best_gain, third.answer_gain) == (dict(B), None, None)
    assert third.failed == {"oom": 1}
    assert told.evidence == {"crash": 1, "ok": 8, "oom": 1}


def test_the_measured_curves(told: Explanation) -> None:
    """Seconds over the best's, ascending, and where default (a) and answer (c) stand."""
    first, second, third = told.neighbours
    assert (first.ratios, first.default_at, first.answer_at) == ([1.0, 2.0, 4.0], 2, 0)
    assert (second.ratios, second.default_at, second.answer_at) == ([1.0, 3.0, 6.0], 1, 0)
    assert (third.ratios, third.default_at, third.answer_at) == ([1.0, 2.0], None, 1)
    assert {(n.m, n.n, n.nnz, n.group) for n in told.neighbours} == {(10, 10, 20, "g")}


def test_a_long_curve_is_thinned_and_keeps_what_matters() -> None:
    made, store = by_hand()
    many = {Config({"variant": f"v{i}"}): 1.0 + i / 1000 for i in range(1000)} | {A: 1.5005, C: 1.7}
    for i, config in enumerate(many):
        run = Run("7" * 32, OP, "tiny", config, Measurement(times_s=(many[config],)))
        store.append([run], patterns=[WorkloadInfo(id="7" * 32)] if not i else [])
    near = [RecommendedNeighbour("7" * 32, "tiny", "long", 1.0, None, 1.0)]
    (n,) = explain(msgspec.structs.replace(made, neighbours=near), store).neighbours
    assert len(n.ratios) <= 200 and n.ratios == sorted(n.ratios) and n.measured == 1002
    assert (n.ratios[0], n.ratios[-1]) == (1.0, pytest.approx(1.999))
    assert n.default_at is not None and n.ratios[n.default_at] == pytest.approx(1.5005)
    assert n.answer_at is not None and n.ratios[n.answer_at] == pytest.approx(1.7)


@pytest.mark.parametrize(
    ("percentile", "said"),
    [
        (0.1, "nearer than most: only 10 %"),
        (0.5, "as near as usual: 50 %"),
        (0.87, "farther than most: 87 %"),
        (0.95, "unusually far: 95 %"),
        (0.995, "unlike anything measured here"),
        (1.0, "unlike anything measured here"),
        (None, "too few groups"),
    ],
)
def test_novelty_is_one_plain_sentence(percentile: float | None, said: str) -> None:
    made, _ = by_hand()
    near = [RecommendedNeighbour(IDS[0], "tiny", "near", 1.0, percentile, 1.0)]
    told = novelty(msgspec.structs.replace(made, neighbours=near))
    assert told.startswith(said) and "\n" not in told


def test_novelty_of_what_was_measured_or_cannot_be_compared() -> None:
    made, _ = by_hand()

    def said(**changes: Any) -> str:
        return novelty(msgspec.structs.replace(made, **changes))

    assert said(link="measured") == "this very pattern was measured here"
    assert "at another width" in said(link="other-width")
    assert said(neighbours=[]) == "no measured pattern is comparable"
    elsewhere = [RecommendedNeighbour(made.pattern_id, "tiny@b", "asked", 0.0, 0.0, 1.0)]
    assert said(neighbours=elsewhere).startswith("this very pattern was measured on another")


def test_predicted_against_measured() -> None:
    made, store = by_hand()
    assert explain(made, store).within_interval is None

    def within(seconds: float, low: float | None = 2.0) -> bool | None:
        first = msgspec.structs.replace(
            made.candidates[0], seconds=seconds, status="ok", gain_low=low, gain_high=4.0
        )
        done = msgspec.structs.replace(made, candidates=[first], default_seconds=6.0)
        return explain(done, store).within_interval

    assert within(2.0) is True and within(1.0) is False and within(4.0) is False
    assert within(2.0, low=None) is None


def test_the_pattern_is_shown_as_it_was_asked_about() -> None:
    made, store = by_hand()
    bare = explain(made, store).pattern
    assert (bare.id, bare.name, bare.m, bare.thumbnail) == ("f" * 32, "asked", -1, b"")
    assert bare.features == {"rows": 9.0, "fill": 5.5, "flat": 0.0}
    picture = bytes(range(256)) * 4
    asked = WorkloadInfo(id="f" * 32, m=7, n=8, nnz=9, group="g", thumbnail=picture)
    shown = explain(msgspec.structs.replace(made, pattern=asked), store).pattern
    assert (shown.m, shown.n, shown.nnz, shown.group, shown.thumbnail) == (7, 8, 9, "g", picture)
    store.put_patterns([WorkloadInfo(id="f" * 32, m=5, n=5, nnz=5, thumbnail=picture)])
    assert explain(made, store).pattern.thumbnail == picture
    odd = msgspec.structs.replace(asked, thumbnail=b"short")
    assert explain(msgspec.structs.replace(made, pattern=odd), store).pattern.thumbnail == b""


def test_answers_of_older_programs_still_explain() -> None:
    made, store = by_hand()
    old = json.loads(msgspec.json.encode(made))
    for key in ("insight", "pattern", "model", "model_featurizer"):
        del old[key]
    told = explain(msgspec.json.decode(json.dumps(old), type=Recommendation), store)
    assert told == explain(made, store)
    assert told.recommendation.insight.simpler == []


def test_where_the_query_differs(told: Explanation) -> None:
    """Weighted mean of rows: (2*1 + 1*2 + 1*6) / 4 = 2.5, three and a quarter deviations off."""
    (rows,) = told.differences
    assert (rows.feature, rows.query, rows.neighbours) == ("rows", 9.0, 2.5)
    assert rows.deviations == pytest.approx((9.0 - 2.5) / 2.0)


def test_numbers_of_a_learned_vector_are_no_statistics() -> None:
    made, store = by_hand()
    version = made.features_by[1] or made.featurizer_version
    learned = {f"{version[:8]}.{at}": row for at, row in enumerate(made.features.values())}
    explanation = explain(msgspec.structs.replace(made, features=learned), store)
    assert explanation.neighbours and not explanation.differences


def test_how_the_winners_agree(told: Explanation) -> None:
    (variant,) = told.agreement
    assert variant.votes == {"c": pytest.approx(0.75), "b": pytest.approx(0.25)}
    assert (variant.answer, variant.open) == ("c", False)
    made, store = by_hand()
    level = [msgspec.structs.replace(n, weight=1.0) for n in made.neighbours[1:]]
    (variant,) = explain(msgspec.structs.replace(made, neighbours=level), store).agreement
    assert variant.votes == {"b": 0.5, "c": 0.5} and variant.open


def test_a_default_that_is_kept_is_not_tied_with_proposals_that_gain(told: Explanation) -> None:
    """A guard put it first, and its score is that of the best behind it."""
    first, second, *_ = told.recommendation.candidates
    kept = msgspec.structs.replace(first, score=-0.5, expected_gain=1.0)
    behind = msgspec.structs.replace(second, score=-0.5, expected_gain=1.87)
    made = msgspec.structs.replace(told.recommendation, candidates=[kept, behind])
    assert near_ties(made) == []


def test_near_ties_by_score_and_by_seconds(told: Explanation) -> None:
    assert told.near_ties == [dict(B)]
    made, _ = by_hand()

    def measured(*seconds: float | None) -> Recommendation:
        return msgspec.structs.replace(
            made,
            candidates=[
                msgspec.structs.replace(c, seconds=s, status="ok" if s else "crash")
                for c, s in zip(made.candidates, seconds, strict=True)
            ],
        )

    assert near_ties(measured(1.0, 1.05, 2.0)) == [dict(B)]
    assert near_ties(measured(1.0, 1.2, None)) == []
    assert near_ties(msgspec.structs.replace(made, candidates=[])) == []


def test_measured_gain() -> None:
    made, store = by_hand()
    assert explain(made, store).measured_gain is None
    candidates = [msgspec.structs.replace(made.candidates[0], seconds=2.0, status="ok")]
    done = msgspec.structs.replace(made, candidates=candidates, default_seconds=5.0)
    assert explain(done, store).measured_gain == 2.5


def test_without_anything_but_the_answer() -> None:
    """Runs, vectors and platform may be gone: what is left is still told."""
    made, _ = by_hand()
    told = explain(made, memory_store())
    assert [n.measured for n in told.neighbours] == [0, 0, 0]
    assert told.differences == [] and told.evidence == {}
    assert told.recommendation == made
    assert told.answer == dict(C) and told.expected_gain == 3.0


def test_without_neighbours_and_candidates() -> None:
    made, store = by_hand()
    bare = msgspec.structs.replace(made, neighbours=[], candidates=[], features={})
    told = explain(bare, store)
    assert told.answer == dict(A) and told.expected_gain is None
    assert [a.votes for a in told.agreement] == [{}] and told.agreement[0].open


def test_a_neighbour_that_was_a_stub_when_the_answer_was_given() -> None:
    made, store = by_hand()
    real = band(30, 3, name="real")
    store.append(
        [Run("9" * 32, OP, "tiny", c, Measurement(times_s=(t,))) for c, t in [(A, 8.0), (C, 2.0)]],
        patterns=[WorkloadInfo(id="9" * 32, name="real", stub=True)],
    )
    near = [RecommendedNeighbour("9" * 32, "tiny", "real", 1.0, None, 1.0)]
    made = msgspec.structs.replace(made, neighbours=near)
    before = explain(made, store)
    store.put_structure(real, WorkloadInfo.whole(real))
    store.adopt("9" * 32, WorkloadInfo.whole(real))
    after = explain(made, store)
    (one,), (other,) = before.neighbours, after.neighbours
    assert one.answer_gain == 4.0 and (one.m, other.m) == (-1, 30)
    facts = {name: getattr(one, name) for name in ("m", "n", "nnz", "group", "thumbnail")}
    assert msgspec.structs.replace(other, **facts) == one and after.evidence == before.evidence


def test_real_answers_are_explained_and_are_json() -> None:
    db = fill(Database.in_memory(), tiny())
    new = band(137, 14, name="new")
    for pattern in (new, patterns()[0]):
        made = db.query(pattern, platform="tiny", op=OP)
        told = db.explain(made.id)
        assert Config(told.answer) == Config(made.candidates[0].config)
        assert len(told.neighbours) == len(made.neighbours) >= 3
        assert all(n.answer_gain is not None and n.measured == 4 for n in told.neighbours)
        assert told.evidence == {"ok": 4 * len(told.neighbours)}
        assert len(told.differences) <= 6
        away = [abs(d.deviations) for d in told.differences]
        assert away == sorted(away, reverse=True)
        json.dumps(told.document(), allow_nan=False)
    with pytest.raises(NothingFound):
        db.explain("r404")


def test_the_answer_stays_explained_when_more_is_measured() -> None:
    db = fill(Database.in_memory(), tiny())
    made = db.query(band(137, 14, name="new"), platform="tiny", op=OP)
    before = db.explain(made.id)
    fill(db, tiny(), patterns(1, first=9))
    assert db.explain(made.id) == before


def test_explaining_loads_no_index_and_no_model() -> None:
    code = """
        import sys

        import embeddb.explain.explain, embeddb.ranking.recommendation

        unneeded = ("faiss", "scipy", "torch", "embeddb.index", "embeddb.cost_model",
                    "embeddb.featurizers", "embeddb.ranking.query", "indexer", "tuners")
        print(sorted(sys.modules.keys() & set(unneeded)))
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60
    )
    assert run.stdout == "[]\n", run.stdout + run.stderr


OFFLINE = """
    import json, socket, sys

    class Missing:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in {"faiss", "scipy", "torch", "sklearn", "matplotlib"}:
                raise ModuleNotFoundError(f"{name} is not here")

    sys.meta_path.insert(0, Missing())
    socket.socket = None

    import msgspec
    from embeddb.database import Database

    with Database.open(sys.argv[1], readonly=True) as db:
        print(msgspec.json.encode(db.explain(sys.argv[2])).decode())
"""


@pytest.fixture
def moved(tmp_path: Path) -> tuple[Path, Explanation]:
    """A database without its index, moved to another place, and what it explained before."""
    folder = tmp_path / "db"
    with Database.create(folder) as db:
        fill(db, tiny(), patterns(3))
        db.index.record(runs_of(patterns()[0], tiny()), patterns()[0], tiny())
        made = db.query(band(137, 14, name="new"), platform="tiny", op=OP, why=True)
        told = db.explain(made.id)
    shutil.rmtree(folder / "index")
    return folder.rename(tmp_path / "copy"), told


def _offline(folder: Path, told: Explanation, *wrapper: str) -> None:
    asked = [str(folder), told.recommendation.id]
    run = subprocess.run(
        [*wrapper, sys.executable, "-c", textwrap.dedent(OFFLINE), *asked],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    assert msgspec.json.decode(run.stdout, type=Explanation) == told


def test_offline_by_construction(moved: tuple[Path, Explanation]) -> None:
    """No index, no vectors, no model, no network, and none of the heavy packages."""
    folder, told = moved
    insight = told.recommendation.insight
    assert insight.effects and insight.attention and told.pattern.thumbnail
    _offline(folder, told)


def test_offline_in_a_namespace_without_a_network(moved: tuple[Path, Explanation]) -> None:
    alone = ["unshare", "--net", "--map-root-user"]
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], check=False).returncode:
        pytest.skip("this machine lets nobody leave the network")
    _offline(*moved, *alone)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(_document(explain(*by_hand())), indent=1) + "\n")
