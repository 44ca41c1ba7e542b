"""How the programs of others end: statuses, limits, and nothing left running."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from command_files import OP, PATTERN, QUICK, A, B, measured, platform_of

from embeddb.core.config import Op
from embeddb.core.errors import RunnerUnavailable, UsageError
from embeddb.platforms.platform import runner_for
from indexer.runners.base import RunOptions


@pytest.mark.parametrize(
    ("script", "status", "error"),
    [
        ("echo bad >&2; echo worse >&2; exit 5", "crash", "exit status 5: bad | worse"),
        ("echo t=1; exit 3", "oom", "exit status 3"),
        ("echo t=1; exit 4", "ok", ""),
        ("echo t=1; exit 124", "timeout", "exit status 124"),
        ("kill -SEGV $$", "crash", "ended by signal 11"),
        ("echo t=1; echo 'row 3: MISMATCH'", "wrong", "MISMATCH"),
        ("echo 'cannot allocate 9 GB' >&2; exit 1", "oom", "cannot allocate"),
    ],
)
def test_ends(tmp_path: Path, script: str, status: str, error: str) -> None:
    extra = """
[command.exit]
3 = "oom"
4 = "ok"
124 = "timeout"
[command.status]
wrong = "MISMATCH"
oom = "cannot allocate"
"""
    found = measured(tmp_path, script, extra=extra)
    assert found.status == status and error in found.error
    assert found.seconds == (1e-3 if status == "ok" else math.inf)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def gone(file: Path) -> bool:
    """Whether the processes whose numbers a file lists have ended, within a second."""
    pids = [int(word) for word in file.read_text().split()]
    until = time.monotonic() + 1
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.01)
    return bool(pids) and not any(map(alive, pids))


def test_a_hanging_program_is_killed_with_its_children(tmp_path: Path) -> None:
    script = "echo $$ >> pids; (sleep 60 & echo $! >> pids; wait) & wait"
    options = RunOptions(repeats=1, timeout_s=0.3)
    started = time.monotonic()
    found = measured(tmp_path, script, options=options)
    assert found.status == "timeout" and "0.3 s" in found.error
    assert time.monotonic() - started < 3 and gone(tmp_path / "pids")


def test_children_that_outlive_the_program_are_not_waited_for(tmp_path: Path) -> None:
    started = time.monotonic()
    found = measured(tmp_path, "sleep 60 & echo $! > pids; echo t=1")
    assert found.ok and time.monotonic() - started < 3 and gone(tmp_path / "pids")


def test_a_program_that_closes_its_output_and_hangs(tmp_path: Path) -> None:
    script = "echo $$ > pids; echo t=1; exec sleep 60 >&- 2>&-"
    found = measured(tmp_path, script, extra="timeout_s = 0.3")
    assert found.status == "timeout" and gone(tmp_path / "pids")


def test_an_interrupt_leaves_no_process(tmp_path: Path) -> None:
    runner = runner_for(platform_of(tmp_path, "echo $$ > pids; sleep 60"))

    def interrupt() -> None:
        while not ((tmp_path / "pids").exists() and (tmp_path / "pids").read_text().strip()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        list(runner.run(PATTERN, OP, [A], options=QUICK))
    thread.join()
    assert gone(tmp_path / "pids")


def test_an_interrupt_while_the_program_starts_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            (tmp_path / "pids").write_text(str(self.pid))
            os.kill(os.getpid(), signal.SIGINT)

    runner = runner_for(platform_of(tmp_path, "sleep 60"))
    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(runner.run(PATTERN, OP, [A], options=QUICK))
    assert gone(tmp_path / "pids")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_retries(tmp_path: Path) -> None:
    script = 'echo x >> tries; test "$(wc -l < tries)" -ge 3 && echo t=1'
    found = measured(tmp_path, script, extra="retries = 3")
    assert found.ok and found.context["tries"] == 3
    (tmp_path / "tries").unlink()
    found = measured(tmp_path, script, extra="retries = 1")
    assert found.status == "crash" and found.context["tries"] == 2
    found = measured(tmp_path, "exit 3", extra='retries = 5\n[command.exit]\n3 = "oom"')
    assert found.status == "oom" and found.context["tries"] == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits memory on Linux only")
def test_memory_is_limited(tmp_path: Path) -> None:
    program = "bytearray(1 << 30); print('t=1')"
    run = json.dumps([sys.executable, "-S", "-c", "import time; time.sleep(0.2); " + program])
    run = run[:-1] + ', "{matrix}", "{config.mode}"]'
    extra = 'max_memory_mib = 256\n[command.status]\noom = "MemoryError"'
    assert measured(tmp_path, "", run=run, extra=extra).status == "oom"


def test_a_matrix_too_large_to_write_is_refused(tmp_path: Path) -> None:
    options = RunOptions(max_bytes=100)
    found = measured(tmp_path, "touch ran; echo t=1", options=options)
    assert found.status == "oom" and "bytes of 100" in found.error
    assert not (tmp_path / "ran").exists()


def test_a_program_that_vanishes_is_no_status(tmp_path: Path) -> None:
    (tmp_path / "sim").write_text("#!/bin/sh\nrm sim\necho t=1\n")
    (tmp_path / "sim").chmod(0o755)
    run = '["./sim", "{matrix}", "{config.mode}"]'
    runner = runner_for(platform_of(tmp_path, "", run=run))
    found = runner.run(PATTERN, OP, [A, B], options=QUICK)
    assert next(found)[1].ok
    with pytest.raises(RunnerUnavailable, match="cannot be started: No such file"):
        next(found)


def test_a_program_that_leaves_a_folder_for_its_output(tmp_path: Path) -> None:
    time = "{ regex = '(1)', unit = 's', from = 'output' }"
    script = 'mkdir "$3" || exit 9'
    found = measured(tmp_path, script, time=time, extra="retries = 1")
    assert found.error.startswith("wrote no file {output}") and found.context["tries"] == 2
    found = measured(tmp_path, 'ln -s /dev/zero "$3"', time=time)
    assert found.error.startswith("wrote no file {output}")


def test_a_foreign_operation_raises(tmp_path: Path) -> None:
    runner = runner_for(platform_of(tmp_path, "echo t=1"))
    with pytest.raises(UsageError, match="no sddmm"):
        list(runner.run(PATTERN, Op("sddmm", 8), [A], options=QUICK))
