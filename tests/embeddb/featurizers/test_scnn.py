"""The learned featurizer in a database: its vectors, its weights, and machines without torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import OP, band, fill, patterns, tiny
from command_line import run_verb

from embeddb.core.errors import MissingDependency, ModelError, UsageError
from embeddb.core.extras import install_hint
from embeddb.core.files import model_file
from embeddb.core.pattern import Pattern
from embeddb.core.records import WorkloadInfo
from embeddb.database import Database
from embeddb.featurizers import Featurizers, scnn
from embeddb.featurizers.scnn import OWN, Scnn, StatsScnn
from embeddb.featurizers.stats import Stats
from embeddb.index.fit import _preferred
from embeddb.testing.featurizers import FeaturizerContract, extreme_patterns
from indexer import embed as module
from indexer.embed import embed

torch = pytest.importorskip("torch")

REDUCTION = {"kind": "grid", "size": 16, "windows": 2, "window": 8}
SPEC = {"name": "waco", "in_channels": 3, "dim": 8}
pytestmark = pytest.mark.usefixtures("one_thread")


def write_weights(path: Path, seed: int = 0, **card: Any) -> Path:
    """An untrained network of 8 features; its card with whatever is asked."""
    from embeddb.featurizers.network.networks import build

    head = {"kind": "featurizer", "network": SPEC, "reduction": REDUCTION, "seed": seed} | card
    tensors = build(SPEC, seed=seed).state_dict()
    if head["kind"] == "costmodel":
        head = {"kind": "costmodel"}
    model_file.save(path, tensors, head)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two files of weights."""
    folder = tmp_path_factory.mktemp("weights")
    return [write_weights(folder / f"{seed}.safetensors", seed) for seed in (0, 1)]


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch, made: list[Path]) -> Path:
    monkeypatch.setattr(scnn, "SHIPPED", made[0])
    return made[0]


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A machine without torch, from when it is called."""
    return lambda: monkeypatch.setitem(sys.modules, "torch", None)


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """No other featurizers from now on."""
    monkeypatch.setattr(Featurizers, "_names", lambda self: names)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, made: list[Path]) -> Path:
    """A partition that was built with `scnn`, and the vectors of `stats` as well."""
    folder = tmp_path_factory.mktemp("built") / "db"
    with pytest.MonkeyPatch.context() as patched, Database.create(folder) as db:
        patched.setattr(scnn, "SHIPPED", made[0])
        patched.setattr("embeddb.index.fit._worth_it", lambda gain, group: True)
        only(patched, "scnn", "stats")
        fill(db, tiny())
        found = db.index.partition(OP, db.platform("tiny"))
        assert found is not None and found.featurizer == "scnn"
    return folder


@pytest.fixture
def learned(tmp_path: Path, built: Path, shipped: Path) -> Path:
    """That database, to be written to."""
    return Path(shutil.copytree(built, tmp_path / "learned"))


class TestScnn(FeaturizerContract):
    @pytest.fixture(autouse=True)
    def _weights(self, made: list[Path]) -> None:
        self.file = made[0]

    def make(self) -> Scnn:
        return Scnn(self.file)


class TestStatsScnn(FeaturizerContract):
    @pytest.fixture(autouse=True)
    def _weights(self, made: list[Path]) -> None:
        self.file = made[0]

    def make(self) -> StatsScnn:
        return StatsScnn(self.file)


@pytest.mark.parametrize(("gain", "chosen"), [(0.2, "scnn"), (0.001, "stats"), (-0.2, "stats")])
def test_a_network_must_be_surely_better(gain: float, chosen: str) -> None:
    """By more than two standard errors of the same matrices' losses, over their groups."""
    noise = np.random.default_rng(0).normal(0.0, 0.1, 20)
    losses = {"stats": 0.5 + noise * 0, "scnn": 0.5 - gain + noise}
    assert _preferred(losses, np.arange(20) // 2) == chosen


@pytest.mark.parametrize(("gain", "chosen"), [(0.2, "given"), (0.01, "stats"), (-0.2, "stats")])
def test_of_the_others_the_first_that_is_not_surely_worse_is_used(gain: float, chosen: str) -> None:
    noise = np.random.default_rng(0).normal(0.0, 0.1, 20)
    noise -= noise.mean()
    unjudged = np.full(20, np.nan)
    losses = {"other": unjudged, "stats": 0.5 + noise * 0, "given": 0.5 - gain + noise}
    assert _preferred(losses, np.arange(20) // 2) == chosen
    assert _preferred({"other": unjudged, "stats": unjudged}, np.arange(20) // 2) == "other"


# -- vectors -----------------------------------------------------------------------------------


def test_a_vector_depends_on_the_pattern_alone(made: list[Path]) -> None:
    among = [*patterns(2), *extreme_patterns().values()]
    one = Scnn(made[0])
    first = [one.embed(p) for p in among]
    assert len({v.tobytes() for v in first[:8]}) == 8
    again = [Scnn(made[0]).embed(p) for p in reversed(among)]
    assert all(np.array_equal(a, b) for a, b in zip(first, reversed(again), strict=True))


def test_threads_do_not_disturb_each_other(made: list[Path]) -> None:
    among = patterns(2) * 2
    one = Scnn(made[0])
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(one.embed, among))
    alone = Scnn(made[0])
    assert all(np.array_equal(v, alone.embed(p)) for v, p in zip(found[:8], among[:8], strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(found, found[8:], strict=False))


def test_features_of_other_weights_are_not_taken(made: list[Path]) -> None:
    one, other = Scnn(made[0]), Scnn(made[1])
    assert one.version == model_file.version_of(made[0]) != other.version
    named = one.as_features(one.embed(band(20, 3)))
    assert next(iter(named)) == f"scnn.{one.version[:8]}.0"
    assert other.from_info(WorkloadInfo(id="0", features=named)) is None


def test_both_parts_side_by_side(made: list[Path]) -> None:
    both, pattern = StatsScnn(made[0]), band(30, 4)
    parts = [Stats(), Scnn(made[0])]
    vectors = [part.embed(pattern) for part in parts]
    assert np.array_equal(both.embed(pattern), np.concatenate(vectors))
    features = {
        k: v for p, x in zip(parts, vectors, strict=True) for k, v in p.as_features(x).items()
    }
    assert np.array_equal(
        both.from_info(WorkloadInfo(id="0", features=features)), np.concatenate(vectors)
    )
    features.pop(f"scnn.{parts[1].names[3]}")
    assert both.from_info(WorkloadInfo(id="0", features=features)) is None


def test_torch_is_imported_to_embed_only(made: list[Path]) -> None:
    code = (
        "import sys, pathlib;"
        "from embeddb.featurizers.scnn import StatsScnn;"
        "from embeddb.core.records import WorkloadInfo;"
        f"found = StatsScnn(pathlib.Path({str(made[0])!r}));"
        "assert found.dim == len(found.names) and not found.missing();"
        "assert found.from_info(WorkloadInfo(id='0')) is None;"
        "assert not {'torch', 'numba'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_torch_it_says_what_to_install(made: list[Path], no_torch: Any) -> None:
    no_torch()
    one = Scnn(made[0])
    assert one.missing() == f"torch not installed ({install_hint('learn')})"
    with pytest.raises(MissingDependency, match="torch") as caught:
        one.embed(band(9, 2))
    assert "learn" in caught.value.hint


def test_an_output_that_is_not_finite_is_no_vector(tmp_path: Path) -> None:
    from embeddb.featurizers.network.networks import build

    huge = {k: torch.full_like(v, 3e38) for k, v in build(SPEC).state_dict().items()}
    path = tmp_path / "huge.safetensors"
    model_file.save(path, huge, {"kind": "featurizer", "network": SPEC, "reduction": REDUCTION})
    with pytest.raises(ModelError, match="not finite"):
        Scnn(path).embed(band(9, 2))


# -- weights -----------------------------------------------------------------------------------


def test_without_weights_it_is_not_there() -> None:
    db = fill(Database.in_memory(), tiny(), patterns(1))
    assert "scnn" not in db.index.featurizers() and "stats-scnn" not in list(db.index.featurizers())
    assert db.index.featurizers().get("scnn") is None
    for name in ("scnn", "stats-scnn"):
        with pytest.raises(UsageError, match="no weights") as caught:
            db.index.vector(band(9, 2), name)
        assert "--weights" in caught.value.hint
    with pytest.raises(UsageError, match="no featurizer named 'other'"):
        db.index.vector(band(9, 2), "other")
    assert db.problems() == []


def test_the_database_s_own_weights_replace_the_shipped(
    tmp_path: Path, made: list[Path], shipped: Path
) -> None:
    with Database.create(tmp_path / "db") as db:
        fill(db, tiny(), patterns(2))
        ids = [p.id for p in patterns(2)]
        old, new = (Scnn(path) for path in made)
        assert len(db.store.vectors.get("scnn", old.version, ids)) == 8
        assert db.index.use_weights(made[1]) == new.version == db.index.featurizer_version("scnn")
        assert db.store.vectors.get("scnn", new.version, ids) == {}
        report = embed(db.index)
        assert f"vectors of scnn {old.version} are of another version and not used" in report.notes
        assert report.vectors["scnn"] == report.vectors["stats-scnn"] == 8
        stored = db.store.vectors.get("scnn", new.version, ids)
        assert all(np.array_equal(stored[p.id], new.embed(p)) for p in patterns(2))
        assert embed(db.index).notes == [] and db.problems() == []
    own = tmp_path / "db" / OWN
    assert own.read_bytes() == made[1].read_bytes() and len(list(own.parent.iterdir())) == 1
    with Database.open(tmp_path / "db") as db:
        assert db.index.featurizer_version("scnn") == new.version


@pytest.mark.parametrize("what", ["folder", "file"])
def test_weights_go_nowhere_else(tmp_path: Path, made: list[Path], what: str) -> None:
    (tmp_path / "home").mkdir()
    mine = tmp_path / "home" / OWN.name
    mine.write_bytes(b"mine")
    with Database.create(tmp_path / "db") as db:
        if what == "folder":
            (tmp_path / "db" / OWN).parent.symlink_to(mine.parent)
            with pytest.raises(ModelError, match="a link or file where a folder of ours would be"):
                db.index.use_weights(made[1])
        else:
            (tmp_path / "db" / OWN).parent.mkdir()
            (tmp_path / "db" / OWN).symlink_to(mine)
            db.index.use_weights(made[1])
            assert not (tmp_path / "db" / OWN).is_symlink()
    assert mine.read_bytes() == b"mine"


def test_only_vectors_that_are_there_are_said_to_be_of_another_version(
    tmp_path: Path, made: list[Path], shipped: Path
) -> None:
    with Database.create(tmp_path / "db") as db:
        assert embed(db.index).notes == []
        db.index.use_weights(made[1])
        assert embed(db.index).notes == []  # there were no patterns
        fill(db, tiny(), patterns(2))
        assert embed(db.index).notes == []
        db.index.use_weights(made[0])
        assert embed(db.index, again=True).notes == []  # forgotten just now
        db.index.use_weights(made[1])
        assert len(embed(db.index).notes) == 2


def test_vectors_of_two_versions_never_meet(
    tmp_path: Path, made: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition of old weights is not asked with a vector of new ones."""
    with Database.create(tmp_path / "db") as db:
        db.index.use_weights(made[0])
        with monkeypatch.context() as patched:
            only(patched, "scnn")
            fill(db, tiny(), patterns(2))
        before = db.query(band(137, 14, name="new"), platform="tiny", op=OP)
        assert before.featurizer == "scnn"
        db.index.use_weights(made[1])
        with monkeypatch.context() as patched:
            only(patched, "scnn")
            embed(db.index)
            after = db.query(band(137, 14, name="new"), platform="tiny", op=OP)
            found = db.index.partition(OP, db.platform("tiny"))
        assert after.featurizer_version == Scnn(made[1]).version != before.featurizer_version
        assert found is not None and len(found.ids) == 8
        new = Scnn(made[1])
        for pattern in patterns(2):
            at = found.ids.index(pattern.id)
            assert np.array_equal(found.vectors[at], new.embed(pattern))


def other_network(path: Path) -> Path:
    return write_weights(path, network={**SPEC, "dim": 9})


def other_channels(path: Path) -> Path:
    return write_weights(path, network={**SPEC, "in_channels": 4})


def other_reduction(path: Path) -> Path:
    return write_weights(path, reduction={"kind": "grid", "size": 10**9})


def cost_model(path: Path) -> Path:
    return write_weights(path, kind="costmodel")


def truncated(path: Path) -> Path:
    path.write_bytes(write_weights(path).read_bytes()[:-100])
    return path


def pickled(path: Path) -> Path:
    torch.save(torch.zeros(3), path)
    return path


def absent(path: Path) -> Path:
    return path


BAD = [other_network, other_channels, other_reduction, cost_model, truncated, pickled, absent]


@pytest.mark.parametrize("bad", BAD)
def test_weights_that_cannot_be_used_change_nothing(
    tmp_path: Path, made: list[Path], bad: Any
) -> None:
    file = bad(tmp_path / "bad.safetensors")
    with Database.create(tmp_path / "db") as db:
        version = db.index.use_weights(made[0])
        with pytest.raises(ModelError, match=r"bad\.safetensors") as caught:
            db.index.use_weights(file)
        assert "\n" not in str(caught.value)
        assert db.index.featurizer_version("scnn") == version
    assert (tmp_path / "db" / OWN).read_bytes() == made[0].read_bytes()


def test_a_database_in_memory_has_no_weights_of_its_own(made: list[Path]) -> None:
    with pytest.raises(UsageError, match="in memory"):
        Database.in_memory().index.use_weights(made[0])


@pytest.mark.parametrize("bad", [truncated, other_network])
def test_damaged_weights_leave_the_others_at_work(learned: Path, bad: Any) -> None:
    (learned / OWN).parent.mkdir()
    bad(learned / OWN)
    with Database.open(learned) as db:
        report = embed(db.index)
        assert any("scnn" in line and OWN.name in line for line in report.problems)
        assert report.vectors["stats"] == 20 and report.partitions[0]["featurizer"] == "stats"
        found = db.query(band(137, 14), platform="tiny", op=OP)
        assert found.candidates[0].config == {"variant": "c"}


def test_weights_replaced_by_another_process_are_not_mixed(
    tmp_path: Path, made: list[Path]
) -> None:
    path = tmp_path / "own.safetensors"
    path.write_bytes(made[0].read_bytes())
    one = Scnn(path)
    path.write_bytes(made[1].read_bytes())
    with pytest.raises(ModelError, match="replaced") as caught:
        one.embed(band(9, 2))
    assert "open the database again" in caught.value.hint and one.missing()


# -- a machine without torch -------------------------------------------------------------------


@pytest.mark.parametrize("readonly", [False, True])
def test_a_partition_of_scnn_is_answered_by_others(
    learned: Path, no_torch: Any, readonly: bool
) -> None:
    with Database.open(learned, readonly=readonly) as db:
        no_torch()
        found = db.query(band(137, 14), platform="tiny", op=OP)
        assert found.featurizer == "stats" and found.candidates[0].config == {"variant": "c"}
        assert any("scnn cannot be computed here" in line for line in found.warnings)
        assert any("learn" in line for line in found.warnings)
        known = db.store.pattern(patterns(1)[0].id)
        assert known is not None
        assert db.query(known, platform="tiny", op=OP).featurizer == "stats"
    if not readonly:
        with Database.open(learned) as db:  # once: the next one finds it rebuilt
            assert db.query(band(137, 14), platform="tiny", op=OP).featurizer == "stats"
            assert db.index.repairs() == []


def test_torch_that_cannot_be_imported_is_found_out_by_the_query(
    learned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Database.open(learned) as db:
        monkeypatch.setitem(sys.modules, "embeddb.featurizers.network.networks", None)
        found = db.query(band(137, 14), platform="tiny", op=OP)
        assert found.featurizer == "stats"
        assert any("scnn cannot be computed here" in line for line in found.warnings)


def test_what_is_known_answers_where_there_is_nothing_but_scnn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shipped: Path, no_torch: Any
) -> None:
    only(monkeypatch, "scnn")
    with Database.create(tmp_path / "db") as db:
        fill(db, tiny(), patterns(2))
        no_torch()
    with Database.open(tmp_path / "db") as db:
        found = db.query(patterns(1)[2], platform="tiny", op=OP)
        assert (found.featurizer, found.link) == ("scnn", "measured")
        with pytest.raises(MissingDependency, match="torch"):
            db.query(band(137, 14), platform="tiny", op=OP)


def test_embedding_goes_on_and_the_choice_is_made_again_with_torch(
    tmp_path: Path, shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Database.create(tmp_path / "db") as db:
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, "torch", None)
            fill(db, tiny(), patterns(2), indexed=False)
            report = embed(db.index)
            db.index.add_pattern(band(50, 3))
        assert report.vectors["stats"] == 8 and report.vectors["scnn"] == 0
        assert report.partitions[0]["featurizer"] not in ("scnn", "stats-scnn")
        assert [p for p in report.problems if p.startswith("scnn")] == [
            f"scnn: 8 patterns not embedded: torch not installed ({install_hint('learn')})"
        ]
        (note,) = db.index._files.notes().values()
        assert "scnn" not in note["chosen_among"]
        assert embed(db.index).vectors["scnn"] == 9
        (note,) = db.index._files.notes().values()
        assert note["chosen_among"]["scnn"] == Scnn(shipped).version


def test_travelled_vectors_count_once_torch_is_there(shipped: Path, no_torch: Any) -> None:
    """Vectors from features alone: no partition of theirs without torch, but one with it."""
    one = Scnn(shipped)
    infos = {}
    for p in patterns(2):
        named = one.as_features(one.embed(p)) | Stats().as_features(Stats().embed(p))
        infos[p.id] = WorkloadInfo(id=p.id, m=p.shape[0], n=p.shape[1], nnz=p.nnz, features=named)
    db = fill(Database.in_memory(), tiny(), patterns(2), indexed=False)
    db.store.put_patterns(infos.values())
    no_torch()
    report = embed(db.index)
    assert report.vectors["scnn"] == report.vectors["stats-scnn"] == 8 and not report.problems
    assert report.partitions[0]["featurizer"] not in ("scnn", "stats-scnn")
    assert set(db.index.evidence(OP, "tiny")[1]) & {"scnn", "stats-scnn"} == set()


# -- embedding in bulk -------------------------------------------------------------------------


def test_the_network_runs_once_per_pattern(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Pattern] = []
    real = Scnn.embed
    monkeypatch.setattr(Scnn, "embed", lambda self, p: (done.append(p), real(self, p))[1])
    db = fill(Database.in_memory(), tiny(), patterns(2))
    assert len(done) == 8
    both = db.index.featurizers()["stats-scnn"]
    for pattern in patterns(2):
        assert np.array_equal(db.index.vector(pattern, "stats-scnn"), both.embed(pattern))
    done.clear()
    db.index.vector(patterns(1)[0], "scnn")
    assert done == []  # what is in the store is not computed again


def test_an_interruption_keeps_what_took_a_while(
    shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BATCH_S", 0.0)
    only(monkeypatch, "scnn")
    db = fill(Database.in_memory(), tiny(), patterns(2), indexed=False)
    real, left = Scnn.embed, [3]

    def failing(self: Scnn, pattern: Pattern) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return real(self, pattern)

    monkeypatch.setattr(Scnn, "embed", failing)
    with pytest.raises(KeyboardInterrupt):
        embed(db.index)
    assert db.store.counts()["vector"] == 3


# -- the verb ----------------------------------------------------------------------------------


def test_embed_with_weights(
    tmp_path: Path, made: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with Database.create(tmp_path / "db") as db:
        fill(db, tiny(), patterns(2))
    command = ["embed", str(tmp_path / "db"), "--weights", str(made[0])]
    assert run_verb([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {"vectors", "partitions", "problems", "notes", "weights"}
    assert document["weights"] == model_file.version_of(made[0])
    assert document["vectors"]["scnn"] == 8
    assert run_verb([*command[:3], str(made[1])]) == 0
    captured = capsys.readouterr()
    assert f"weights {model_file.version_of(made[1])} of scnn" in captured.out
    assert f"vectors of scnn {document['weights']} are of another version" in captured.err
    assert run_verb([*command[:3], str(tmp_path / "nowhere")]) == 1
    assert "nowhere" in capsys.readouterr().err
