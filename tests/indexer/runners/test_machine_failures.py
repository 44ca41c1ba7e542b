"""What the machine fails at is no status of a configuration: no space, killed, cannot start."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from command_files import PATTERN, QUICK, A, measured, platform_of

from embeddb.core.config import Config, Op
from embeddb.core.errors import RunnerUnavailable
from embeddb.kernels import build as cpu_build
from embeddb.kernels import codegen as cpu_codegen
from embeddb.kernels import machine_failures as machine
from embeddb.kernels.machine_failures import Deadline, ProgramKilled, blamed_line, killed_by
from embeddb.platforms.platform import runner_for
from indexer.runners.base import RunOptions
from indexer.runners.cpu import CpuRunner
from indexer.runners.harness.worker_process import WorkerProcess

needs_gcc = pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc")
EASY = RunOptions(repeats=1, max_repeats=1, threads=1, timeout_s=30.0)
PLAIN = Config({"order": "ijk", "format": "csr", "threads": "all", "schedule": "static"})
TILED = PLAIN.replace(order="ik1jk0", ktile=8)
SPMM = Op("spmm", 8)

#: A compiler that does what the file `how` beside it says, and makes an object of `size` bytes.
COMPILER = """#!/bin/sh
test "$1" = --version && echo "stub 1.0" && exit 0
here=$(dirname "$0")
source=$(cat)
for out; do :; done
. "$here/how"
head -c "$(cat "$here/size")" /dev/zero > "$out"
"""


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file that says how the compiler fails."""
    folder = tmp_path / "stub"
    folder.mkdir()
    (folder / "cc").write_text(COMPILER)
    (folder / "cc").chmod(0o755)
    (folder / "size").write_text("1000")
    (folder / "how").write_text("")
    monkeypatch.setenv(cpu_build.COMPILER_VARIABLE, str(folder / "cc"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cpu_build, "_ABLE_S", 0.0)
    return folder / "how"


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """As on a full disk, no larger file can be written inside."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# -- compiling -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("echo 'cc1.s: error: No space left on device' >&2; exit 1", "No space left"),
        ("echo 'fatal error: writing: Disk quota exceeded' >&2; exit 1", "Disk quota exceeded"),
        (
            "echo 'cc: fatal error: Killed signal terminated program cc1' >&2; exit 1",
            "Killed signal terminated program",
        ),
        ("echo 'cc1: error: Cannot allocate memory' >&2; exit 1", "Cannot allocate memory"),
        ("echo 'collect2: error: ld terminated with signal 9 [Killed]' >&2; exit 1", "signal 9"),
        ("kill -KILL $$", "was ended by SIGKILL"),
        (
            "echo \"collect2: fatal error: cannot find 'ld'\" >&2; exit 1",
            "cannot compile even a small",
        ),
        ("exit 1", "cannot compile even a small"),
        ("kill -SEGV $$", "cannot compile even a small"),
    ],
)
def test_a_compiler_that_the_machine_fails(stub: Path, how: str, said: str) -> None:
    stub.write_text(how)
    with pytest.raises(RunnerUnavailable, match=said) as caught:
        cpu_build.build("int x;")
    assert "temporary files in" in caught.value.hint and "run the same command again" in (
        caught.value.hint
    )
    stub.write_text("")
    assert not cpu_build.build("int x;").error, "there is space again"


@pytest.mark.parametrize("how", ["echo 'no such luck: error' >&2; exit 1", "kill -SEGV $$"])
def test_a_source_at_fault_is_of_the_configuration(stub: Path, how: str) -> None:
    stub.write_text(f'case "$source" in *bad*) {how};; esac')
    built = cpu_build.build("int bad;")
    assert built.error.startswith("cc failed: ")
    assert not list(built.path.parent.glob(".build-*"))


def test_that_the_small_source_compiles_counts_for_a_moment_only(
    stub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_build, "_ABLE_S", 60.0)
    calls = stub.with_name("calls")
    stub.write_text(f'echo x >> {calls}; case "$source" in *bad*) exit 1;; esac')
    for name in ("bad1", "bad2", "bad3"):
        assert cpu_build.build(f"int {name};").error
    assert len(calls.read_text()) == 2 * 4
    stub.write_text("exit 1")
    monkeypatch.setenv("TMPDIR", str(stub.parent))
    with pytest.raises(RunnerUnavailable, match="cannot compile even a small"):
        cpu_build.build("int bad4;")


def test_a_full_cache(stub: Path) -> None:
    with (
        files_of_at_most(1010),
        pytest.raises(RunnerUnavailable, match="cannot store compiled kernels") as caught,
    ):
        cpu_build.build("int x;")
    assert "XDG_CACHE_HOME" in caught.value.hint
    found = cpu_build.build("int x;")
    names = {one.name for one in found.path.parent.iterdir()}
    assert not found.error and names == {found.path.name, "compilers"}


def test_a_compiler_that_cannot_be_started(stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    cpu_build.compiler()
    monkeypatch.setattr(cpu_build.subprocess, "Popen", refused)
    with pytest.raises(RunnerUnavailable, match="cannot be started: Resource temporarily"):
        cpu_build.build("int x;")


def test_compiling_ahead_stops_too(stub: Path) -> None:
    stub.write_text("echo 'No space left on device' >&2; exit 1")
    with CpuRunner() as runner, pytest.raises(RunnerUnavailable, match="No space left"):
        runner.prepare(SPMM, [PLAIN, TILED])


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to mount a small disk")
@pytest.mark.gcc
@needs_gcc
def test_a_full_folder_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if os.system(f"mount -t tmpfs -o size=512k tmpfs {small} 2>/dev/null") != 0:
        pytest.skip("nothing can be mounted here")
    try:
        monkeypatch.setenv("TMPDIR", str(small))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        with suppress(OSError), (small / "full").open("wb") as out:
            out.write(bytes(1_000_000))
        with CpuRunner() as runner:
            with pytest.raises(RunnerUnavailable, match="No space left on device"):
                next(runner.run(PATTERN, SPMM, [PLAIN], options=EASY))
            (small / "full").unlink()
            assert next(runner.run(PATTERN, SPMM, [PLAIN], options=EASY))[1].ok
    finally:
        os.system(f"umount {small}")


# -- the worker ----------------------------------------------------------------------------------


def poisoned(monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    """Kernels with a tile do this first."""
    genuine, head = cpu_codegen.source, "static void kernel(const problem q)\n{\n"
    monkeypatch.setattr(
        cpu_codegen,
        "source",
        lambda v: genuine(v).replace(head, head + statement) if v.tile else genuine(v),
    )


@pytest.mark.gcc
@needs_gcc
@pytest.mark.usefixtures("kernels")
class TestWorker:
    def test_killed_from_outside_and_crashed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        poisoned(monkeypatch, "for (volatile int x = 1; x;) ;")
        with CpuRunner() as runner:
            runner.prepare(SPMM, [PLAIN, TILED])
            stream = runner.run(PATTERN, SPMM, [PLAIN, TILED], options=EASY)
            assert next(stream)[1].ok
            worker = runner.session._process
            assert worker is not None
            timer = threading.Timer(0.3, worker.kill)
            timer.start()
            with pytest.raises(RunnerUnavailable, match="signal SIGKILL") as caught:
                next(stream)
            timer.join()
            assert "memory" in caught.value.hint
            assert next(runner.run(PATTERN, SPMM, [PLAIN], options=EASY))[1].ok
        poisoned(monkeypatch, "*(volatile int *)8 = 1;")
        with CpuRunner() as runner:
            asked = runner.run(PATTERN, SPMM, [TILED], options=EASY)
            assert [m.status for _, m in asked] == ["crash"]

    def test_ended_by_what_it_could_not_get(self, monkeypatch: pytest.MonkeyPatch) -> None:
        said = "libgomp: Thread creation failed: Resource temporarily unavailable"
        call = f'extern int puts(const char *); extern void exit(int); puts("{said}"); exit(1);'
        poisoned(monkeypatch, call)
        with CpuRunner() as runner, pytest.raises(RunnerUnavailable, match="Thread creation"):
            list(runner.run(PATTERN, SPMM, [TILED], options=EASY))

    def test_an_object_that_cannot_be_loaded(self) -> None:
        with CpuRunner() as runner:
            assert next(runner.run(PATTERN, SPMM, [PLAIN], options=EASY))[1].ok
            for built in runner._built.values():
                built.path.write_bytes(b"as where programs may not lie")
            runner.close()
            with pytest.raises(RunnerUnavailable, match=r"invalid ELF header|file too short"):
                list(runner.run(PATTERN, SPMM, [PLAIN], options=EASY))
            for built in runner._built.values():
                built.path.unlink()

    def test_conversions_that_do_not_compile(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            "indexer.runners.cpu.cpu_codegen.conversions", lambda: "#error not here\n"
        )
        with CpuRunner() as runner, pytest.raises(RunnerUnavailable, match="the conversions of"):
            list(runner.run(PATTERN, SPMM, [PLAIN], options=EASY))


def test_a_worker_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    session = WorkerProcess("indexer.runners.cpu_kernels.worker", env={})
    monkeypatch.setattr(session, "_command", [str(tmp_path / "absent")])
    with pytest.raises(RunnerUnavailable, match="cannot be started: No such file"):
        session.ensure()
    with CpuRunner() as runner:
        monkeypatch.setattr(runner.session, "_command", ["/bin/sh", "-c", "exit 1"])
        monkeypatch.setattr(CpuRunner, "_build", lambda *_: cpu_build.Built(tmp_path, 0.0))
        monkeypatch.setattr(CpuRunner, "available", lambda _: None)
        with pytest.raises(RunnerUnavailable, match=r"cannot take a matrix: .* exit status 1"):
            list(runner.run(PATTERN, SPMM, [PLAIN], options=EASY))


# -- time ----------------------------------------------------------------------------------------


def test_time_in_which_we_were_stopped_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(machine.time, "monotonic", lambda: now[0])
    deadline = Deadline(1.0)
    now[0] += 0.5
    assert deadline.left_s() == 0.5 and 0 < deadline.wait_s() <= 0.5
    now[0] += 3600.0
    assert deadline.left_s() == pytest.approx(0.5)
    now[0] += 0.6
    assert deadline.left_s() < 0 and deadline.wait_s() == 0.0


@pytest.mark.slow
def test_a_stopped_parent_waits_on(tmp_path: Path) -> None:
    """Both the program and whoever measures it stand still for longer than the time limit."""
    script = "kill -STOP $PPID; sleep 2.6; kill -CONT $PPID; sleep 0.2; echo t=1"
    assert measured(tmp_path, script, options=RunOptions(repeats=1, timeout_s=1.0)).ok


def test_what_is_said_of_the_machine() -> None:
    assert killed_by(-signal.SIGKILL) == "SIGKILL" and killed_by(-signal.SIGTERM) == "SIGTERM"
    assert not any(map(killed_by, (0, 1, 137, -signal.SIGSEGV, -signal.SIGBUS, -99)))
    assert blamed_line("a\n  ld: out of memory allocating 8 bytes\n").startswith("ld: out of")
    assert blamed_line("x.c:3: error: expected ';'") == ""
    for said in ("Segmentation fault", "Aborted"):
        assert blamed_line(f"cc: error: {said} signal terminated program cc1") == ""


# -- programs of others --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("kill -KILL $$", "was ended by SIGKILL"),
        ("kill -TERM $$", "was ended by SIGTERM"),
        ("echo 'cp: write error: No space left on device' >&2; exit 1", "No space left on device"),
    ],
)
def test_a_program_that_the_machine_fails(tmp_path: Path, script: str, said: str) -> None:
    with pytest.raises(RunnerUnavailable, match=said):
        measured(tmp_path, f"echo x >> tries; {script}", extra="retries = 3")
    assert (tmp_path / "tries").read_text() == "x\n"


def test_a_killed_program_names_its_point(tmp_path: Path) -> None:
    with pytest.raises(ProgramKilled, match=r"SIGKILL, on .* with mode=a") as caught:
        measured(tmp_path, "kill -KILL $$", extra="max_memory_mib = 4000")
    assert caught.value.signal == "SIGKILL" and "max_memory_mib is 4000" in caught.value.hint
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  # of our own
    assert (copy.signal, copy.hint) == ("SIGKILL", caught.value.hint)
    with pytest.raises(RunnerUnavailable, match="SIGTERM") as ended:
        measured(tmp_path, "kill -TERM $$")
    assert not isinstance(ended.value, ProgramKilled), "a person or a shutdown, not a limit"


def test_the_platform_may_say_what_an_end_means(tmp_path: Path) -> None:
    extra = '[command.status]\noom = "No space left"'
    found = measured(tmp_path, "echo 'No space left on device' >&2; exit 1", extra=extra)
    assert found.status == "oom"


@pytest.mark.parametrize("form", ["mtx", "npz", "smtx"])
def test_a_matrix_that_cannot_be_written(tmp_path: Path, form: str) -> None:
    runner = runner_for(platform_of(tmp_path, "echo t=1", extra=f'matrix = "{form}"'))
    with files_of_at_most(10), pytest.raises(RunnerUnavailable, match="cannot be written for"):
        next(runner.run(PATTERN, SPMM, [A], options=QUICK))
    assert next(runner.run(PATTERN, SPMM, [A], options=QUICK))[1].ok


@pytest.mark.parametrize(
    ("script", "stream"), [("exit 1", "stdout"), ("echo t=1", "output"), ("", "stdout")]
)
def test_a_full_folder_of_a_program(tmp_path: Path, script: str, stream: str) -> None:
    """Where nothing more can be written, neither a crash nor a cut output is believed."""
    to = ' > "$3"' if stream == "output" else ""
    time_of = f"{{ regex = 't=(.)', unit = 'ms', from = '{stream}' }}"
    assert measured(tmp_path, f"{script}{to}", time=time_of).status in ("ok", "crash")
    with files_of_at_most(5000), pytest.raises(RunnerUnavailable, match="no file can be written"):
        measured(tmp_path, f"{script}{to}", time=time_of)


def test_no_folder_for_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    with pytest.raises(RunnerUnavailable, match="cannot be written for the program"):
        measured(tmp_path, "echo t=1")


def test_a_timeout_is_of_the_configuration(tmp_path: Path) -> None:
    started = time.monotonic()
    found = measured(tmp_path, "sleep 9", options=RunOptions(repeats=1, timeout_s=0.2))
    assert found.status == "timeout" and time.monotonic() - started < 3
