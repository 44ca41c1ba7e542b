"""Facts and state of this machine: measured once, kept, and never for a plain question."""

from __future__ import annotations

import json
import platform
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from builders import band

from embeddb.core.timing import distance
from embeddb.database import Database
from embeddb.kernels import build as cpu_build
from embeddb.platforms.machines import described, fact_names
from embeddb.platforms.platform import platform_here
from indexer.runners.cpu import CpuRunner
from indexer.runners.cpu_kernels import probe as cpu_probe
from indexer.runners.harness.worker_process import WorkerProcess, store_facts, stored_facts

needs_gcc = pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc")
pytestmark = [pytest.mark.gcc, needs_gcc, pytest.mark.usefixtures("kernels")]

#: The version of the probe, by which its figures are stored.
PROBE = cpu_probe.source(cpu_build.vector_bytes())
IDENTITY = {"cpu", "compiler", "flags", "kernels", "threads", "wait_policy", "proc_bind"}


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether short, of each probe that a worker is asked for."""
    asked: list[bool] = []
    real = WorkerProcess.request

    def request(self: WorkerProcess, message: Any, *args: Any, **more: Any) -> Any:
        if message["do"] == "probe":
            asked.append(message["short"])
        return real(self, message, *args, **more)

    monkeypatch.setattr(WorkerProcess, "request", request)
    return asked


def test_facts_are_measured_once_and_kept(probes: list[bool]) -> None:
    with CpuRunner() as runner:
        before = runner.platform(threads=1)
        assert not probes and not set(cpu_probe.FACTS) & set(before.environment)
        facts = runner.facts(threads=1)
        assert set(cpu_probe.FACTS) <= set(facts) and all(float(v) > 0 for v in facts.values())
        assert runner.facts(threads=1) == facts and probes == [False]
        after = runner.platform(threads=1)
    assert after.id == before.id
    assert facts.items() <= after.environment.items()
    assert before.environment.items() <= after.environment.items()
    with CpuRunner() as other:
        assert other.platform(threads=1).environment == after.environment
        assert other.facts(threads=1) == facts and probes == [False]


def test_facts_are_no_part_of_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """The id is as it was before there were facts: the digest of exactly these keys."""
    from hashlib import blake2b

    runner = CpuRunner()
    found = runner.platform(threads=2)
    assert set(found.environment) > IDENTITY
    text = "\n".join(f"{key}={found.environment[key]}" for key in sorted(IDENTITY))
    assert found.instance == blake2b(text.encode(), digest_size=4).hexdigest()
    monkeypatch.setattr(cpu_probe, "static_facts", lambda: {"l2_bytes": "1"})
    assert runner.platform(threads=2).id == found.id
    assert runner.platform(threads=2).environment["l2_bytes"] == "1"


def test_damaged_facts_are_measured_anew(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = dict.fromkeys(cpu_probe.FACTS, 2.0)
    measured: list[int] = []
    with CpuRunner() as runner:
        identity = {k: runner.platform(threads=3).environment[k] for k in IDENTITY}
    before = set(kernels.glob("*.facts"))
    stored = store_facts(identity, PROBE, figures)
    (file,) = set(kernels.glob("*.facts")) - before
    whole = file.read_bytes()
    assert stored_facts(identity, PROBE) == stored == dict.fromkeys(cpu_probe.FACTS, "2")
    assert not list(kernels.glob(".facts-*"))

    def probe(self: CpuRunner, threads: int, *, short: bool) -> dict[str, float]:
        measured.append(threads)
        return figures

    monkeypatch.setattr(CpuRunner, "_probe", probe)
    other = json.dumps({**json.loads(whole), "figures": {"wake_us": 1.0}}).encode()
    for damage in (b"", whole[:50], b"\0" * len(whole), b"[]", b'{"figures": 3}', other):
        file.write_bytes(damage)
        assert stored_facts(identity, PROBE) == {}
        assert CpuRunner().facts(threads=3).items() >= stored.items()
        assert file.read_bytes() == whole
    assert measured == [3] * 6


def test_where_nothing_can_be_kept_it_is_measured_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "embeddb").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert store_facts({"cpu": "x"}, PROBE, {"wake_us": 7.0}) == {"wake_us": "7"}
    assert stored_facts({"cpu": "x"}, PROBE) == {}
    with CpuRunner() as runner:
        assert runner.state() == {}, "a state is never worth an error"


def test_a_worker_that_dies_leaves_the_facts_that_can_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reply = {"status": "crash", "error": "the worker ended"}
    monkeypatch.setattr(WorkerProcess, "request", lambda *_, **__: reply)
    with CpuRunner() as runner:
        assert set(runner.facts(threads=5)) == set(cpu_probe.static_facts()) | {"vector_bytes"}
        assert runner.state(threads=5) == {}


def test_the_state_is_told_quickly(probes: list[bool]) -> None:
    with CpuRunner() as runner:
        first = runner.state(threads=1)
        took = []
        for _ in range(5):
            start = time.perf_counter()
            again = runner.state(threads=1)
            took.append(time.perf_counter() - start)
            far = distance(first, again)
            assert set(again) == set(cpu_probe.STATE) and far is not None and far < 3
    assert probes == [True] * 6
    assert min(took) < 0.2, "about 20 ms where nothing else runs"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs x86-64")
@pytest.mark.parametrize(("compiler", "march"), [("gcc", "x86-64-v3"), ("clang", "x86-64-v2")])
def test_no_compiler_leaves_a_loop_out(
    compiler: str, march: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that is gone takes no time: no processor adds a petaflop or streams a petabyte."""
    if not shutil.which(compiler):
        pytest.skip(f"needs {compiler}")
    monkeypatch.setenv(cpu_build.COMPILER_VARIABLE, compiler)
    monkeypatch.setenv(cpu_build.MARCH_VARIABLE, march)
    built = cpu_build.build(cpu_probe.source(cpu_build.vector_bytes()))
    assert not built.error
    with CpuRunner() as runner:
        found = runner.facts(threads=1)
    assert 1 < float(found["multiply_add_gflop_s"]) < 1000
    assert 1 < float(found["gather_memory_m_s"]) <= 1.5 * float(found["gather_l2_m_s"]) < 1e5
    assert 0.5 < float(found["stream_memory_gb_s"]) < 2 * float(found["stream_l2_gb_s"]) < 1e5


def test_a_plain_question_probes_nothing(probes: list[bool]) -> None:
    with Database.in_memory() as db:
        made = db.query(band(40, 3), platform="cpu", op="spmm:8")
    assert made.platform.startswith("cpu@") and not probes


def test_what_is_run_here_knows_its_facts(probes: list[bool]) -> None:
    with CpuRunner() as runner:
        found = platform_here(runner, threads=4)
    assert set(cpu_probe.FACTS) <= set(found.environment) and probes == [False]


def test_facts_have_words_and_units() -> None:
    facts = dict.fromkeys((*cpu_probe.FACTS, *cpu_probe.static_facts(), "vector_bytes"), "4")
    told = dict(described({**facts, "l2_bytes": "1048576", "board": "x <y>"}))
    assert not set(told) & set(facts), "every fact of this machine has words"
    assert told["second level cache"] == "1 MiB" and told["board"] == "x <y>"
    assert told["vector registers"] == "4 bytes" and told["wakes its threads"] == "4 microseconds"
    assert set(cpu_probe.FACTS) <= set(fact_names())
    assert dict(described({"l2_bytes": "many"})) == {"second level cache": "many"}


def test_the_command_line_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of this machine, or of those in a database; nothing is measured for it."""
    from command_line import run_verb

    with CpuRunner() as runner:
        here = runner.platform()
    with Database.create(tmp_path / "runs.db") as db:
        db.store.put_platform(here.at("other", {"cpu": "old", "stream_l2_gb_s": "99"}))
    assert run_verb(["platform", "show", "cpu"]) == 0
    said = capsys.readouterr().out
    assert f"this machine is {here.id}" in said and "vector registers: " in said
    assert run_verb(["platform", "show", "cpu", "--db", str(tmp_path / "runs.db"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["instances"] == {"cpu@other": {"cpu": "old", "stream_l2_gb_s": "99"}}
    assert document["environment"] == {}
