"""The example generators, the demo's table, and the whole demo on a tiny database."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from embeddb import Config, Database, Op, Pattern, Run, load_platform
from embeddb.core.errors import InputError
from embeddb.core.records import Measurement
from embeddb.matrix_files import read_pattern
from indexer import starter as shipped
from indexer.campaign.plan import choose_configs
from indexer.exchange.exchange import export_file
from indexer.shipped.__main__ import ship

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
CPU = load_platform("cpu").at("0badcafe", {"cpu": "made up"})


@pytest.fixture
def patterns(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import patterns

    return patterns


@pytest.fixture
def demo(patterns: Any) -> Any:
    import demo

    return demo


def seconds(pattern: Pattern, op: Op, config: Config) -> float:
    """Made up: `k1ijk0` is the fastest everywhere, twice as fast as the default."""
    factor = {"ijk": 1.0, "k1ijk0": 0.5}.get(str(config["order"]), 0.7)
    return pattern.nnz * op.width * 1e-9 * factor


class FakeRunner:
    """Answers from `seconds`; refuses to convert to 8x8 blocks."""

    name = "fake"

    def __init__(self) -> None:
        self.rounds = 0

    def platform(self, *, threads: int = 0) -> Any:
        return CPU

    def run(
        self, pattern: Pattern, op: Op, configs: Sequence[Config], *, options: Any
    ) -> Iterator[tuple[Config, Measurement]]:
        self.rounds += 1
        for config in configs:
            if config.get("block") == "8x8":
                yield config, Measurement("oom", error="too large")
            else:
                yield config, Measurement("ok", (seconds(pattern, op, config),))

    def baselines(self, pattern: Pattern, op: Op, *, options: Any) -> dict[str, Measurement]:
        slow = pattern.nnz * op.width * 4e-9
        return {"scipy-csr": Measurement("ok", (slow,)), "torch-csr": Measurement("crash")}


def small(patterns: Any) -> dict[str, Any]:
    return {
        "cube.npz": patterns.poisson3d(side=8),
        "mesh.npz": patterns.fem_blocks(nodes=80),
        "graph.npz": patterns.scale_free(nodes=200, edges=900),
        "tall.npz": patterns.tall(rows=300, cols=40),
    }


@pytest.fixture
def starter(patterns: Any, tmp_path: Path) -> Path:
    """An export as the campaign makes it: 8 matrices, 12 configurations, two ops."""
    path = tmp_path / "starter.jsonl.gz"
    with Database.in_memory() as db:
        for seed in range(4):
            for name, matrix in (
                (f"g{seed}", patterns.scale_free(nodes=150 + 50 * seed, edges=800, seed=seed)),
                (f"t{seed}", patterns.tall(rows=200 + 90 * seed, cols=50, seed=seed)),
            ):
                pattern = Pattern.from_csr(
                    matrix.shape, matrix.indptr, matrix.indices, name=name, group=name
                )
                runs = []
                for op in (Op("spmm", 32), Op("spmm", 128)):
                    rng = np.random.default_rng(0)
                    configs = choose_configs(CPU.space(op), CPU.default(op), 12, rng=rng)
                    for config, m in FakeRunner().run(pattern, op, configs, options=None):
                        runs.append(Run(pattern.id, op, CPU.id, config, m, "test"))
                db.index.record(runs, pattern, CPU)
        export_file(db.index, path)
    return path


# -- generators --------------------------------------------------------------------------------


def test_every_example_is_of_the_promised_size(patterns: Any) -> None:
    for name, make in patterns.EXAMPLES.items():
        matrix = make()
        assert isinstance(matrix, sparse.csr_array)
        assert 50_000 <= matrix.nnz <= 800_000, name
        assert matrix.has_canonical_format, name


def test_poisson_is_the_seven_point_stencil(patterns: Any) -> None:
    a = patterns.poisson3d(side=4).toarray()
    assert a.shape == (64, 64) and (a == a.T).all() and (np.diag(a) == 1).all()
    lengths = (a != 0).sum(axis=1)
    assert lengths.min() == 4 and lengths.max() == 7
    middle = 1 * 16 + 1 * 4 + 1  # point (1, 1, 1)
    assert set(np.flatnonzero(a[middle])) == {middle + d for d in (0, 1, -1, 4, -4, 16, -16)}


@pytest.mark.parametrize("block", [3, 4])
def test_fem_blocks_are_dense_and_symmetric(patterns: Any, block: int) -> None:
    a = patterns.fem_blocks(nodes=60, block=block)
    assert (a != a.T).nnz == 0
    tiles = a.toarray().reshape(60, block, 60, block).sum(axis=(1, 3))
    assert set(np.unique(tiles)) == {0, block * block}
    assert (np.diag(tiles) == block * block).all()


def test_scale_free_has_hubs_and_no_loops(patterns: Any) -> None:
    a = patterns.scale_free(nodes=2000, edges=9000)
    degrees = np.sort(np.diff(a.indptr))[::-1]
    assert a.diagonal().sum() == 0 and (a != a.T).nnz == 0
    assert degrees[0] > 20 * np.median(degrees)


def test_tall_is_tall_with_no_empty_row(patterns: Any) -> None:
    a = patterns.tall(rows=500, cols=60)
    lengths = np.diff(a.indptr)
    assert a.shape == (500, 60) and lengths.min() >= 1 and lengths.max() <= 12


def test_seeds_decide(patterns: Any) -> None:
    for make in (patterns.fem_blocks, patterns.scale_free, patterns.tall):
        one, same, other = make(seed=1), make(seed=1), make(seed=2)
        assert (one != same).nnz == 0
        assert one.shape == other.shape and (one != other).nnz > 0


def test_written_examples_read_back(
    patterns: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Callable[[], Any]] = {
        "a.mtx": lambda: patterns.poisson3d(side=5),
        "b.npz": lambda: patterns.tall(30, 9),
    }
    monkeypatch.setattr(patterns, "EXAMPLES", made)
    paths = patterns.write_examples(tmp_path / "new")
    assert [p.name for p in paths] == ["a.mtx", "b.npz"]
    for path, make in zip(paths, made.values(), strict=True):
        a = make()
        assert read_pattern(path) == Pattern.from_csr(a.shape, a.indptr, a.indices)
    before = paths[0].stat().st_mtime_ns
    patterns.write_examples(tmp_path / "new")
    assert paths[0].stat().st_mtime_ns == before
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["a.mtx", "b.npz"]


# -- the demo ----------------------------------------------------------------------------------


def written(patterns: Any, folder: Path) -> list[Path]:
    folder.mkdir()
    for name, matrix in small(patterns).items():
        sparse.save_npz(folder / name, matrix)
    return sorted(folder.iterdir())


def test_the_whole_demo(
    demo: Any, patterns: Any, starter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, runner = tmp_path / "out", FakeRunner()
    paths = written(patterns, tmp_path / "in")
    assert demo.demo(out, paths, starter=starter, runner=runner, calibrate_s=0) == 0
    assert runner.rounds == demo.ROUNDS * 8
    shown = capsys.readouterr().out
    answers, results = shown.split("What was measured")
    for name in ("cube", "mesh", "graph", "tall"):
        assert answers.count(f"\n{name} ") == results.count(f"\n{name} ") == 2
    assert "neighbours" in answers and "k1ijk0" in answers
    assert "torch" not in results.splitlines()[2]  # it crashed: no column of its own
    mean = next(line for line in results.splitlines() if line.startswith("geometric mean"))
    uncalibrated = ["-", "-"]
    assert mean.split()[-6:] == ["2.00x", "2.00x", *uncalibrated, "1.00x", "8.00x"]
    told = json.loads((out / "explain-cube-spmm_32.json").read_text())
    assert told["measured_gain"] == pytest.approx(2.0)
    assert "rests on" in (out / "explain-tall-spmm_128.txt").read_text()
    page = (out / "index.html").read_text(encoding="utf-8")
    links = re.findall(r'href="(explain-[^"]+)"', page)
    assert len(links) == 8 and all((out / link).is_file() for link in links)
    assert page.count("<svg") == 8 and "2.00×" in page and "made up" in page
    assert "measured elsewhere" not in shown and str(out / "index.html") in shown
    with Database.open(out / "demo.db") as db:
        pattern = read_pattern(out.parent / "in" / "cube.npz")
        runs = list(db.store.runs(CPU.id, Op("spmm", 32), pattern.id))
        assert len({r.config for r in runs}) >= 6
        assert db.query(pattern, platform=CPU, op="spmm:32").link == "measured"
    stored = [line for line in shown.splitlines() if line.startswith("  ") and "embeddb" in line]
    assert len(stored) == 3


def test_the_demo_starts_anew_each_time(
    demo: Any, patterns: Any, starter: Path, tmp_path: Path
) -> None:
    path = written(patterns, tmp_path / "in")[0]
    before = starter.read_bytes()
    for _ in range(2):
        assert (
            demo.demo(tmp_path / "out", [path], starter=starter, runner=FakeRunner(), calibrate_s=0)
            == 0
        )
    assert starter.read_bytes() == before
    with Database.open(tmp_path / "out" / "demo.db") as db:
        first = min(db.recommendations(), key=lambda r: r.created)
        assert first.link == "neighbours"


def test_without_a_compiler_the_answers_are_shown(
    demo: Any,
    patterns: Any,
    starter: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("embeddb.kernels.build.compiler", lambda: None)
    paths = written(patterns, tmp_path / "in")[:1]
    assert demo.demo(tmp_path / "out", paths, starter=starter) == 0
    shown = capsys.readouterr()
    assert "install a C compiler to build kernels" in shown.err
    assert "neighbours" in shown.out and "measured on this machine" not in shown.out
    assert (tmp_path / "out" / "explain-cube-spmm_32.txt").stat().st_size > 100


def test_a_missing_or_damaged_starter_is_one_line(
    demo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shipped, "STARTER_FILE", tmp_path / "no.rows")
    assert demo.main(["--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"format": "embeddb", "version": 1}\n["run", 0, 0, 0, 0, []]\n')
    with pytest.raises(InputError, match="damaged"):
        demo.demo(tmp_path / "out", [], starter=bad)


def test_a_wrong_matrix_is_said_before_anything_long(
    demo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "fresh_database", lambda *_: pytest.fail("imported before it read"))
    assert demo.main([str(tmp_path / "nope.mtx"), "--out", str(tmp_path / "out")]) == 1
    assert "nope.mtx" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_demo_and_starter_are_unpacked_once(
    demo: Any, starter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "starter.rows"
    ship([starter], data)
    monkeypatch.setattr(shipped, "STARTER_FILE", data)
    monkeypatch.setenv("EMBEDDB_HOME", str(tmp_path / "home"))
    filled: list[Path] = []
    fill = shipped._fill
    monkeypatch.setattr(shipped, "_fill", lambda to, told: (filled.append(to), fill(to, told)))
    for at in range(2):
        with demo.fresh_database(tmp_path / f"{at}.db") as db:
            assert db.store.count_runs() == 8 * 2 * 12 and not db.problems()
    assert len(filled) == 1
    with Database.open(shipped.starter_folder()) as db:  # what was measured since stays behind
        run = next(iter(db.runs()))
        db.store.append([replace(run, campaign="mine")])
    with demo.fresh_database(tmp_path / "2.db") as db:
        assert db.store.count_runs() == 8 * 2 * 12
    assert filled[1:] == [tmp_path / "2.db"]


def test_other_machines_are_told_of_in_one_sentence(
    demo: Any, patterns: Any, starter: Path, tmp_path: Path
) -> None:
    matrix = patterns.tall(100, 20)
    pattern = Pattern.from_csr(matrix.shape, matrix.indptr, matrix.indices, name="x")
    there = load_platform("cpu").at("0badbeef", {"cpu": "another", "threads": "2"})
    with demo.fresh_database(tmp_path / "case.db", starter) as db:
        for platform, said in ((CPU, False), (there, True)):
            told = demo.other_machines(
                db, [demo.ask(db, pattern, platform, Op("spmm", 32))], platform
            )
            assert ("made up" in told and "another, 2 threads" in told) == said


def test_measuring_ends_when_time_is_up(
    demo: Any, patterns: Any, starter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "ENOUGH_S", -1.0)
    runner = FakeRunner()
    path = written(patterns, tmp_path / "in")[0]
    demo.demo(tmp_path / "out", [path], starter=starter, runner=runner, calibrate_s=0)
    assert runner.rounds == 2  # one round of two ops


# -- its table ---------------------------------------------------------------------------------


@pytest.fixture
def case(demo: Any, patterns: Any, starter: Path, tmp_path: Path) -> Any:
    """A measured case with every time known: default 8 s, first answer 4, best 2, static best 3."""
    matrix = patterns.tall(100, 20)
    pattern = Pattern.from_csr(matrix.shape, matrix.indptr, matrix.indices, name="x")
    op = Op("spmm", 32)
    with demo.fresh_database(tmp_path / "case.db", starter) as db:
        case = demo.ask(db, pattern, CPU, op)
    default = Config(case.made.default)
    answers = [Config(c.config) for c in case.made.candidates if Config(c.config) != default]
    case.static = CPU.space(op).neighbours(default)[-1]
    assert case.static not in answers and len(answers) >= 3
    case.made = replace_candidates(case.made, answers[:3])
    times = {default: 8.0, answers[0]: 4.0, answers[1]: 2.0, case.static: 3.0}
    for config in case.configs:
        m = Measurement("ok", (times[config],)) if config in times else Measurement("timeout")
        case.runs.append(Run(pattern.id, op, CPU.id, config, m))
    return case


def replace_candidates(made: Any, configs: list[Config]) -> Any:
    import msgspec

    kept = [c for c in made.candidates if Config(c.config) in configs]
    return msgspec.structs.replace(made, candidates=kept)


def test_a_row_compares_the_right_things(demo: Any, case: Any) -> None:
    case.others = {"scipy-csr": [30.0, 10.0, 20.0]}
    row = demo.row_of(case)
    assert (row.default_ms, row.best_ms) == (8000.0, 2000.0)
    assert (row.first, row.best, row.static, row.scipy) == (2.0, 4.0, 1.5, 10.0)
    assert row.torch is None and row.noise is None, "one round says nothing of noise"
    assert row.expected == case.made.candidates[0].expected_gain


def test_noise_is_the_spread_of_the_default_between_rounds(demo: Any, case: Any) -> None:
    default = Config(case.made.default)
    again = next(r for r in case.runs if r.config == default)
    case.runs.append(replace(again, measurement=Measurement("ok", (10.0,))))
    row = demo.row_of(case)
    assert row.noise is not None and 0.05 < row.noise < 0.3
    assert "+-" in demo.legend([row]) and "+-" not in demo.legend([replace(row, noise=None)])


def test_a_row_without_a_default_has_no_factors_over_it(demo: Any, case: Any) -> None:
    default = Config(case.made.default)
    bad = Measurement("timeout")
    case.runs = [replace(r, measurement=bad) if r.config == default else r for r in case.runs]
    row = demo.row_of(case)
    assert row.default_ms is row.first is row.best is row.noise is None
    assert row.static == 1.5
    table = demo.results_table([row])
    assert table.splitlines()[1].split()[:3] == ["x", "spmm:32", "-"]


def test_measured_candidates_are_ranked_and_failures_come_last(demo: Any, case: Any) -> None:
    from embeddb.core.timing import summarise_runs
    from embeddb.ranking.measure import ranked_by_time

    done = ranked_by_time(case.made, summarise_runs(case.runs))
    assert [c.seconds for c in done.candidates] == [2.0, 4.0, None]
    assert done.candidates[-1].status == "timeout" and done.default_seconds == 8.0


def test_geometric_means_leave_out_what_is_missing(demo: Any) -> None:
    assert demo.geomean([2.0, None, 8.0]) == pytest.approx(4.0)
    assert demo.geomean([None]) is None


def test_columns_line_up(demo: Any) -> None:
    text = demo.table_text(("name", "x"), [["a", "1.00x"], ["longer", "12.00x"]], left=(0,))
    assert text.splitlines() == ["name         x", "a        1.00x", "longer  12.00x"]
