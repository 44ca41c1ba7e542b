"""The CPU runner: right numbers from every loop nest, and every failure a status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embeddb.core.config import Config, Op
from embeddb.core.errors import RunnerUnavailable, SpaceError, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.plugins import available, load
from embeddb.kernels import build as cpu_build
from embeddb.kernels import codegen as cpu_codegen
from embeddb.testing.runners import RunnerContract
from indexer.runners.base import RunOptions
from indexer.runners.cpu import CpuRunner
from indexer.runners.harness.worker_process import WorkerProcess

needs_gcc = pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc")
pytestmark = [pytest.mark.gcc, needs_gcc, pytest.mark.usefixtures("kernels")]

QUICK = RunOptions(repeats=1, max_repeats=1, threads=1, timeout_s=30.0)


def config(order: str = "ijk", block: str = "", **more: Any) -> Config:
    values = {"order": order, "threads": "all", "schedule": "static", **more}
    if order == "ik1jk0":
        values.setdefault("ktile", 8)
    values.setdefault("format", "bcsr" if block else "csr")
    return Config({**values, "block": block} if block else values)


DEFAULT = config()
TILED = config("ik1jk0", ktile=32, unroll=4, schedule="dynamic", chunk=16, reorder="none")
BLOCKED = config("ik1jk0", "3x3", ktile=16, schedule="guided")
STRIPS = config("i1k1i0jk0", ktile=8, itile=16, unroll=4)
PANELS = config("j1ik1j0k0", format="dcsr", jtile=8, ktile=8)
FEW = [DEFAULT, TILED, BLOCKED, STRIPS, PANELS]


def random_pattern(shape: tuple[int, int], density: float, seed: int = 0) -> Pattern:
    m, n = shape
    rows, cols = np.nonzero(np.random.default_rng(seed).random((m, n)) < density)
    return Pattern.from_coo((m, n), rows, cols, name=f"random-{m}x{n}")


@pytest.fixture(scope="module")
def shared_runner() -> Iterator[CpuRunner]:
    with CpuRunner() as made:
        yield made


def statuses(
    runner: CpuRunner, pattern: Pattern, width: int, configs: list[Config], **options: Any
) -> list[str]:
    chosen = RunOptions(**options) if options else QUICK
    found = runner.run(pattern, Op("spmm", width), configs, options=chosen)
    return [f"{m.status} {m.error}".strip() for _, m in found]


class TestContract(RunnerContract):
    @pytest.fixture
    def runner(self, shared_runner: CpuRunner) -> CpuRunner:
        return shared_runner

    @pytest.fixture
    def options(self) -> RunOptions:
        return QUICK

    @pytest.fixture
    def configs(self) -> list[Config]:
        return FEW


def test_double_precision_and_threads(shared_runner: CpuRunner) -> None:
    pattern = random_pattern((41, 29), 0.2)
    options = RunOptions(repeats=2, max_repeats=3, threads=2)
    found = list(shared_runner.run(pattern, Op("spmm", 20, "f64"), FEW[:2], options=options))
    for _, m in found:
        assert m.ok and m.tolerance == 1e-13, m.error
        assert len(m.times_s) == len(m.cpu_max_s) == len(m.cpu_sum_s)
        assert 2 <= len(m.times_s) <= 3 and m.compile_s and m.conversion_s is not None
        assert all(0 < a <= b for a, b in zip(m.cpu_max_s, m.cpu_sum_s, strict=True))
        assert {"cache", "load1", "threads", "involuntary_switches"} <= m.context.keys()


def poisoned(monkeypatch: pytest.MonkeyPatch, statement: str, when: int = 32) -> None:
    """Compile kernels with a tile of one width with a statement put in front."""
    genuine = cpu_codegen.source

    def source(variant: cpu_codegen.Variant) -> str:
        text = genuine(variant)
        head = "static void kernel(const problem q)\n{\n"
        assert head in text
        return text.replace(head, head + statement) if variant.tile == when else text

    monkeypatch.setattr(cpu_codegen, "source", source)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("*(volatile int *)8 = 1;", "crash the worker ended with signal SIGSEGV"),
        ("__builtin_trap();", "crash the worker ended with signal SIGILL"),
        ("extern void exit(int); if (q.width) exit(3);", "crash the worker ended with exit status"),
        ("for (volatile int x = 1; x;) ;", "timeout no answer within 0.5 s, killed"),
        ("if (q.width) return;", "wrong row 0 is off by nan"),
        ("#error no such luck\n", "build gcc failed:"),
    ],
)
def test_a_failing_kernel_is_a_status(
    monkeypatch: pytest.MonkeyPatch, statement: str, expected: str
) -> None:
    poisoned(monkeypatch, statement)
    pattern = random_pattern((41, 29), 0.5)
    with CpuRunner() as runner:
        asked = [DEFAULT, TILED, DEFAULT]
        found = statuses(runner, pattern, 8, asked, timeout_s=0.5, threads=1)
    assert found[0] == found[2] == "ok"
    assert found[1].startswith(expected)


def test_slightly_wrong_numbers_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = cpu_codegen.source
    monkeypatch.setattr(
        cpu_codegen, "source", lambda v: genuine(v).replace("a * b[x]", "a * 1.0001f * b[x]")
    )
    with CpuRunner() as runner:
        found = statuses(runner, random_pattern((41, 29), 0.5), 8, [DEFAULT])
    assert found[0].startswith("wrong row")


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (config("kji"), "order = kji"),
        (config("k1ijk0"), "ktile = None"),
        (config("ik1jk0", ktile=24), "ktile = 24"),
        (config("ik1jk0", ktile="8; exit(1)"), "ktile = 8; exit(1)"),
        (config("ijk", "2x2"), "format = bcsr"),
        (config("ik1jk0", "9x99"), "block = 9x99"),
        (config("ik1jk0", unroll=0), "unroll = 0"),
        (config("ik1jk0", unroll=True), "unroll = True"),
        (config("ik1jk0", reorder="best"), "reorder = best"),
        (config("ijk", threads=2), "threads = 2"),
        (config("ijk", unroll=4), "unroll is not a parameter"),
        (config("ijk", schedule="auto"), "schedule = auto"),
        (config("ijk", ktile=8), "ktile is not a parameter"),
    ],
)
def test_an_illegal_config_is_named(shared_runner: CpuRunner, bad: Config, named: str) -> None:
    with pytest.raises(SpaceError, match="="):
        cpu_codegen.plan(bad, Op("spmm", 4))
    (found,) = statuses(shared_runner, random_pattern((5, 5), 0.5), 4, [bad])
    assert found.startswith("invalid") and named in found


def test_too_much_fill_is_oom_and_nothing_is_allocated(shared_runner: CpuRunner) -> None:
    diagonal = np.arange(2000) * 8
    pattern = Pattern.from_coo((16000, 16000), diagonal, diagonal)
    found = statuses(shared_runner, pattern, 2, [config("ik1jk0", "8x8"), DEFAULT])
    assert found[0] == "oom 8x8 blocks store 128000 values for 2000: fill 64.0 > 8"
    assert found[1] == "ok"


def test_max_bytes_bounds_operands_and_forms(shared_runner: CpuRunner) -> None:
    pattern = random_pattern((100, 100), 0.5)
    (found,) = statuses(shared_runner, pattern, 128, [DEFAULT], max_bytes=10_000)
    assert found.startswith("oom matrix and dense operands need")
    need = 4 * 8 * (164 + 2 * 164) + pattern.nnz * 12 + 8 * 101
    tight = statuses(shared_runner, pattern, 8, [BLOCKED, DEFAULT], max_bytes=need + 5000)
    assert tight[0].startswith("oom 3x3 blocks need") and tight[1] == "ok"


def test_forms_make_room_for_each_other(shared_runner: CpuRunner) -> None:
    pattern = random_pattern((100, 100), 0.9)
    blocks = [config("ik1jk0", block) for block in ("2x2", "3x3", "2x2")]
    room = {"max_bytes": 4 * 8 * 492 + pattern.nnz * 12 + 808 + 60_000, "threads": 1}
    assert statuses(shared_runner, pattern, 8, blocks, **room) == ["ok"] * 3


def test_without_gcc_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with CpuRunner() as runner:
        reason = runner.available()
        assert reason == "gcc not found: install a C compiler to build kernels; queries need none"
        with pytest.raises(RunnerUnavailable, match="gcc not found"):
            next(runner.run(random_pattern((4, 4), 0.5), Op("spmm", 4), [DEFAULT], options=QUICK))
        with pytest.raises(RunnerUnavailable, match="gcc not found"):
            runner.platform()


@pytest.mark.parametrize("op", [Op("spmv", dtype="f16"), Op("spmm", 8, "f16")])
def test_an_operation_it_lacks_is_refused(shared_runner: CpuRunner, op: Op) -> None:
    with pytest.raises(UsageError, match="the cpu runner has no"):
        next(shared_runner.run(random_pattern((4, 4), 0.5), op, [DEFAULT], options=QUICK))


def test_a_worker_killed_between_requests_is_replaced() -> None:
    pattern = random_pattern((41, 29), 0.2)
    with CpuRunner() as runner:
        stream = runner.run(pattern, Op("spmm", 4), [DEFAULT, DEFAULT], options=QUICK)
        assert next(stream)[1].ok
        process = runner.session._process
        assert process is not None
        process.kill()
        process.wait()
        assert next(stream)[1].ok


def test_ctrl_c_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    poisoned(monkeypatch, "for (volatile int x = 1; x;) ;")
    pattern = random_pattern((41, 29), 0.2)
    with CpuRunner() as runner:
        assert statuses(runner, pattern, 4, [DEFAULT]) == ["ok"]
        process = runner.session._process
        assert process is not None
        request, timers = WorkerProcess.request, []

        def interrupted(session: WorkerProcess, *args: Any, **kwargs: Any) -> Any:
            """Compiling is over by now, however long it took."""
            timers.append(threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)))
            timers[-1].start()
            return request(session, *args, **kwargs)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(WorkerProcess, "request", interrupted)
            statuses(runner, pattern, 4, [TILED])
        timers[0].join()
        assert len(timers) == 1
        assert process.poll() is not None
        assert statuses(runner, pattern, 4, [DEFAULT]) == ["ok"]


_ORPHAN = """
import numpy as np
from embeddb.core.config import Config, Op
from embeddb.core.pattern import Pattern
from embeddb.kernels import codegen as cpu_codegen
from indexer.runners.base import RunOptions
from indexer.runners.cpu import CpuRunner
genuine = cpu_codegen.source
head = "static void kernel(const problem q)\\n{\\n"
hang = head + "for (volatile int x = 1; x;) ;"
pattern = Pattern.from_coo((2, 2), np.array([0]), np.array([1]))
config = Config({"order": "ijk", "format": "csr", "threads": "all", "schedule": "static"})
runner = CpuRunner()
options = RunOptions(repeats=1, threads=1, timeout_s=60.0)
assert next(runner.run(pattern, Op("spmm", 2), [config], options=options))[1].ok
cpu_codegen.source = lambda v: genuine(v).replace(head, hang)
print(runner.session._process.pid, flush=True)
next(runner.run(pattern, Op("spmm", 2), [config.replace(order="ik1jk0", ktile=8)], options=options))
"""


def test_a_killed_parent_leaves_no_child_even_in_a_hung_kernel() -> None:
    parent = subprocess.Popen([sys.executable, "-c", _ORPHAN], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        _until(lambda: _busy(child))
        parent.kill()
    _until(lambda: not _alive(child))


def _until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)


def _busy(pid: int) -> bool:
    """Whether a process has used 0.2 s of CPU since this was first asked of it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return used - _SEEN.setdefault(pid, used) > 0.2


_SEEN: dict[int, float] = {}


def _alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_a_stopped_worker_is_said_and_replaced(shared_runner: CpuRunner) -> None:
    session = shared_runner.session
    session.ensure()
    assert session._process is not None
    session._process.send_signal(signal.SIGSTOP)
    with pytest.raises(RunnerUnavailable, match="was stopped by a signal"):
        session.request({"do": "nothing"}, timeout_s=0.2)
    reply = session.request({"do": "nothing"}, timeout_s=20.0)
    assert reply["status"] == "crash" and "nothing" in reply["error"]


def test_baselines_between_configs(shared_runner: CpuRunner) -> None:
    pattern = random_pattern((41, 29), 0.2)
    stream = shared_runner.run(pattern, Op("spmm", 4), [DEFAULT, TILED], options=QUICK)
    assert next(stream)[1].ok
    found = shared_runner.baselines(pattern, Op("spmm", 4), options=QUICK)
    assert found["scipy-csr"].ok and found["scipy-csr"].tolerance == 1e-5
    assert all(m.ok for m in found.values()), found
    assert next(stream)[1].ok


def test_the_environment_is_the_instance(shared_runner: CpuRunner) -> None:
    one, two = shared_runner.platform(threads=1), shared_runner.platform(threads=2)
    assert one.name == "cpu" and one.id == f"cpu@{one.instance}" and len(one.instance) == 8
    assert one.id != two.id and one.id == shared_runner.platform(threads=1).id
    assert {"cpu", "compiler", "flags", "threads"} <= set(one.environment)


def test_it_is_found_as_a_plugin() -> None:
    assert "cpu" in available("runner") and load("runner", "cpu") is CpuRunner


@pytest.mark.parametrize("wrong", [{"repeats": 0}, {"timeout_s": 0.0}, {"threads": -1}])
def test_impossible_effort_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        RunOptions(**wrong)
