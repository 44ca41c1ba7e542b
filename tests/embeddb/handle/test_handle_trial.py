"""First calls decide between an answer of other machines and the usual configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import embeddb
from embeddb.core.config import Config, Op
from embeddb.handle import autotune
from embeddb.handle import compile as of_compile
from embeddb.handle.autotune import TRIED, Trial
from embeddb.handle.choice import Choice, choice_of_config
from embeddb.handle.matrix import matrix_of
from embeddb.kernels import build as cpu_build
from embeddb.platforms.platform import load_platform

needs_gcc = pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc")
pytestmark = [pytest.mark.gcc, needs_gcc]
ROWS = Config.parse("format=csr,order=ijk,schedule=static,threads=all")
BLOCKS = Config.parse("block=2x2,format=bcsr,ktile=16,order=ik1jk0,schedule=static,threads=all")
CALLS = 2 * TRIED


class Slow:
    """Stands for a form of a matrix whose kernel takes so long, on a clock of its own."""

    def __init__(self, clock: list[float], seconds: float) -> None:
        self.clock, self.seconds = clock, seconds

    def compute(self, b: Any, c: Any, out: Any) -> Any:
        self.clock[0] += self.seconds
        return b


@pytest.mark.parametrize(("first_s", "second_s", "stays"), [(1, 2, 0), (2, 1, 1), (1, 1, 0)])
def test_the_faster_stays(
    first_s: float, second_s: float, stays: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    for name in ("perf_counter", "thread_time"):
        monkeypatch.setattr(f"embeddb.handle.autotune.time.{name}", lambda: clock[0])
    rivals = ((Slow(clock, first_s), ROWS), (Slow(clock, second_s), BLOCKS))
    trial = Trial(rivals)  # type: ignore[arg-type]
    for _ in range(CALLS):
        assert not trial.over
        trial.compute(0, None, None)
    assert trial.over and trial.winner == rivals[stays]
    assert str(rivals[stays][1]) in trial.summary().rpartition(";")[2]


def test_scipy_may_be_the_third_and_win(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    for name in ("perf_counter", "thread_time"):
        monkeypatch.setattr(f"embeddb.handle.autotune.time.{name}", lambda: clock[0])
    rivals = ((Slow(clock, 2.0), ROWS), (Slow(clock, 3.0), BLOCKS), (Slow(clock, 1.0), None))
    trial = Trial(rivals)  # type: ignore[arg-type]
    for _ in range(3 * TRIED):
        assert not trial.over
        trial.compute(0, None, None)
    assert trial.over and trial.winner == rivals[2]
    assert trial.summary().endswith("scipy 1000.000 ms; scipy stays")


@pytest.fixture
def a() -> Any:
    rng = np.random.default_rng(0)
    return sparse.random_array((300, 200), density=0.2, rng=rng, format="csr", dtype=np.float32)


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every question is answered with blocks, by other machines."""

    def asked(pattern: Any, op: Op, *_: object, **__: object) -> Choice:
        choice = choice_of_config(BLOCKS, pattern, op)
        default = dict(load_platform("cpu").default(op, pattern.sizes))
        return Choice(config=choice.config, default=default, source="others", sure="low")

    monkeypatch.setattr(of_compile, "query_choice", asked)


@pytest.mark.usefixtures("answered")
def test_first_calls_try_the_usual_configuration_and_give_the_same(a: Any) -> None:
    usual = autotune.usual_config(Op("spmm", 16), matrix_of(a))
    b = np.random.default_rng(1).random((200, 16), dtype=np.float32)
    out = np.empty((300, 16), np.float32)
    f = embeddb.compile(a, "spmm", k=16, calls=1e6, build=True)
    assert f.config == BLOCKS and "first calls" not in f.why()
    for at in range(CALLS + 2):
        made = f(b, out=out) if at % 2 else f(b)
        np.testing.assert_allclose(made, a @ b, rtol=1e-5)
    assert f.config in (BLOCKS, usual) and "first calls tried" in f.why()
    f.update(2 * a)
    np.testing.assert_allclose(f(b), 2 * (a @ b), rtol=1e-5)


@pytest.mark.usefixtures("answered")
@pytest.mark.parametrize(
    "how", [{"calls": 8}, {"reproducible": True}, {"config": BLOCKS}], ids=["few", "same", "given"]
)
def test_nothing_is_tried_where_it_would_not_pay_or_change_results(
    a: Any, how: dict[str, Any]
) -> None:
    wishes = {"calls": 1e6, **how}
    f = embeddb.compile(a, "spmm", k=16, build=True, **wishes)
    b = np.ones((200, 16), np.float32)
    for _ in range(CALLS + 2):
        f(b)
    assert "first calls" not in f.why()


@pytest.mark.parametrize(("calls", "tried"), [(127, False), (128, True), (None, True)])
def test_a_sure_answer_is_tried_where_calls_are_many(
    a: Any, calls: float | None, *, tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(pattern: Any, op: Op, *_: object, **__: object) -> Choice:
        choice = choice_of_config(BLOCKS, pattern, op)
        return Choice(config=choice.config, default=dict(BLOCKS), source="own", sure="high")

    monkeypatch.setattr(of_compile, "query_choice", asked)
    f = embeddb.compile(a, "spmm", k=16, calls=calls, build=True)
    for _ in range(CALLS + 2):
        f(np.ones((200, 16), np.float32))
    assert ("first calls tried" in f.why()) == tried


@pytest.mark.usefixtures("answered")
@pytest.mark.parametrize("how", ["update", "with_values"])
def test_a_trial_goes_on_with_other_values(a: Any, how: str) -> None:
    f = embeddb.compile(a, "spmm", k=16, calls=1e6, build=True)
    b = np.ones((200, 16), np.float32)
    for factor in range(1, CALLS + 1):
        assert "first calls" not in f.why()
        g = f.with_values(factor * a.data) if how == "with_values" else f
        if how == "update":
            f.update(factor * a)
        np.testing.assert_allclose(g(b), factor * (a @ b), rtol=1e-5)
    values = 1 if how == "with_values" else CALLS
    np.testing.assert_allclose(f.with_values(a.data)(b), a @ b, rtol=1e-5)
    assert "first calls tried" in f.why()
    np.testing.assert_allclose(f(b), values * (a @ b), rtol=1e-5)


@pytest.mark.usefixtures("answered")
def test_a_late_conversion_stays_only_if_it_is_the_faster(a: Any, tmp_path: Path) -> None:
    from embeddb.handle.handle import DeferredConfig

    f = embeddb.compile(a, "spmm", k=16, config=ROWS)
    f.change_later(DeferredConfig(BLOCKS, 2))
    b = np.ones((200, 16), np.float32)
    for _ in range(CALLS + 4):
        np.testing.assert_allclose(f(b), a @ b, rtol=1e-5)
    assert f.config in (ROWS, BLOCKS) and "first calls tried" in f.why()
