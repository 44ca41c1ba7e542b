"""A forked process that ends, or whose disk fills up, at the n-th system call that changes a file.

The process is traced by its parent (`ptrace`); a seccomp filter stops it at those calls alone, so
the rest runs at full speed. Everything counts that goes to the kernel: Python's files, LMDB's
pages, what FAISS and numpy write, programs it starts. Linux on x86-64; `missing` says what lacks.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

#: `kill` before the call, `torn` after half of what it would write, `full` from it on no space.
HOWS = ("kill", "torn", "full")
#: By number: calls that write or make something, calls that only order or remove.
_GROWS = {
    1: "write", 18: "pwrite64", 20: "writev", 40: "sendfile", 77: "ftruncate", 83: "mkdir",
    85: "creat", 86: "link", 88: "symlink", 257: "openat", 258: "mkdirat", 265: "linkat",
    285: "fallocate", 296: "pwritev", 326: "copy_file_range", 328: "pwritev2",
}  # fmt: skip
_ORDERS = {
    26: "msync", 74: "fsync", 75: "fdatasync", 76: "truncate", 82: "rename", 84: "rmdir",
    87: "unlink", 263: "unlinkat", 264: "renameat", 316: "renameat2",
}  # fmt: skip
#: Calls whose first argument is what is written to.
_BY_FD = {"write", "pwrite64", "writev", "pwritev", "pwritev2", "ftruncate", "fallocate", "fsync",
          "fdatasync", "sendfile"}  # fmt: skip
_TEARS = {1, 18}
_WALL = 0x40000000
_SECCOMP_STOP = signal.SIGTRAP | (7 << 8)
#: PTRACE_O: trace forks, vforks, clones and seccomp; end with the tracer.
_OPTIONS = 2 | 4 | 8 | 0x80 | 0x100000
_TRACEME, _CONT, _KILLED = 0, 7, signal.SIGKILL
_GETREGS, _SETREGS, _SETOPTIONS, _SYSCALL = 12, 13, 0x4200, 24
_RAX, _RDX, _RDI, _ORIG_RAX = 10, 12, 14, 15


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8),
                ("k", ctypes.c_uint32))  # fmt: skip


class _Program(ctypes.Structure):
    _fields_ = (("len", ctypes.c_uint16), ("filter", ctypes.POINTER(_Instruction)))


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code, or the signal's name; `points` calls that it came to;
    what it printed; what it acknowledged; and whether it had to be ended after the time."""

    code: int
    signal: str
    points: int
    said: str
    acknowledged: str
    hung: bool = False

    @property
    def killed(self) -> bool:
        return self.signal == "SIGKILL" and not self.hung


@cache
def missing() -> str:
    """Why nothing can be traced here; empty if it can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "system calls are traced on Linux and x86-64 only"

    def tried(_: Callable[[str], None]) -> int:
        with open(os.devnull, "wb") as out:  # noqa: PTH123
            out.write(b"x")
        return 0

    ended = traced(tried, how="count", under=Path("/nowhere"), most_s=10)
    return (
        ""
        if ended.code == 0 and not ended.signal
        else f"ptrace or seccomp is refused: {ended.said}"
    )


def apart(work: Callable[[Callable[[str], None]], int], *, most_s: float = 60.0) -> Ended:
    """Work in a child, untouched."""
    return traced(work, how="", under=Path("/nowhere"), most_s=most_s)


def traced(
    work: Callable[[Callable[[str], None]], int],
    *,
    how: str,
    under: Path,
    at: int = 0,
    kill_s: float = 0.0,
    most_s: float = 60.0,
) -> Ended:
    """`work` in a child, whose argument sends a text that counts as acknowledged. Calls on files
    below `under` are points; number `at` (from 1) is where `how` happens. "count" only counts, ""
    traces nothing; with `kill_s` the child is killed after so many seconds.
    """
    said_read, said_write = os.pipe()
    ack_read, ack_write = os.pipe()
    told_read, told_write = os.pipe()
    pid = os.fork()
    if pid == 0:  # the tracer: `waitpid` for all children must not take those of its parent
        for fd in (said_read, ack_read, told_read):
            os.close(fd)
        code = 1
        try:
            tracer = _Tracer(how, under, at, told_write)
            ended = tracer.run(lambda: _child(work, said_write, ack_write, bool(how)))
            os.write(told_write, json.dumps([*ended, tracer.points]).encode())
            code = 0
        finally:
            os._exit(code)
    for fd in (said_write, ack_write, told_write):
        os.close(fd)
    return _collected(pid, (said_read, ack_read, told_read), kill_s, most_s)


def _collected(pid: int, fds: tuple[int, int, int], kill_s: float, most_s: float) -> Ended:
    """Read all three pipes to their end. The tracee's pid comes first through the third."""
    texts: dict[int, bytes] = dict.fromkeys(fds, b"")
    open_ones, started = list(fds), time.monotonic()
    hung = killed = False
    while open_ones:
        now = time.monotonic() - started
        wait = most_s - now if not kill_s or killed else min(kill_s, most_s) - now
        ready, _, _ = select.select(open_ones, [], [], max(0.0, min(wait, 1.0)))
        for fd in ready:
            part = os.read(fd, 1 << 16)
            texts[fd] += part
            if not part:
                open_ones.remove(fd)
        now = time.monotonic() - started
        if (kill_s and not killed and now >= kill_s) or now > most_s:
            hung = hung or now > most_s
            killed = True
            _end(texts[fds[2]], pid, everything=now > most_s)
            if now > most_s + 5:
                break
    for fd in fds:
        os.close(fd)
    os.waitpid(pid, 0)
    said, ack, told = (texts[fd] for fd in fds)
    body = told.partition(b"\n")[2]
    code, name, points = json.loads(body) if body else (-1, "SIGKILL", 0)
    return Ended(code, name, points, said.decode("utf-8", "replace"), ack.decode(), hung)


def _end(told: bytes, tracer: int, *, everything: bool) -> None:
    first = told.partition(b"\n")[0]
    for pid in ([int(first)] if first.isdigit() else []) + ([tracer] if everything else []):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _child(work: Callable[[Callable[[str], None]], int], said: int, ack: int, traced: bool) -> None:
    """Never returns."""
    code = 99
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(said, 1)
        os.dup2(said, 2)
        if traced:
            libc().ptrace(_TRACEME, 0, None, None)
            os.kill(os.getpid(), signal.SIGSTOP)
            _filter()
        code = work(lambda text: os.write(ack, text.encode()) and None)
    except BaseException:  # noqa: BLE001 - printed, which is what the parent looks at
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


@cache
def libc() -> Any:
    lib = ctypes.CDLL(None, use_errno=True)
    lib.ptrace.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    lib.ptrace.restype = ctypes.c_long
    return lib


def _filter() -> None:
    """Stop at the calls of the tables, `openat` only where it may make a file."""
    load, equal, test, done = 0x20, 0x15, 0x45, 0x06
    allow, trace = 0x7FFF0000, 0x7FF00000
    plain = [nr for nr in (*_GROWS, *_ORDERS) if nr != 257]
    lines = [(load, 0, 0, 0)]
    lines += [(equal, len(plain) - at + 3, 0, nr) for at, nr in enumerate(plain)]
    lines += [
        (equal, 0, 2, 257),
        (load, 0, 0, 32),  # the third argument: flags
        (test, 1, 0, os.O_CREAT),
        (done, 0, 0, allow),
        (done, 0, 0, trace),
    ]
    code = (_Instruction * len(lines))(*(_Instruction(*line) for line in lines))
    program = _Program(len(lines), code)
    if libc().prctl(38, 1, 0, 0, 0) or libc().prctl(22, 2, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp is refused")


class _Tracer:
    def __init__(self, how: str, under: Path, at: int, told: int) -> None:
        self._how, self._at, self._told = how, at, told
        self._under = os.fsencode(os.path.realpath(under))
        self.points = 0

    def run(self, child: Callable[[], None]) -> tuple[int, str]:
        """Exit code and signal of the child."""
        pid = os.fork()
        if pid == 0:
            child()
        os.write(self._told, f"{pid}\n".encode())
        if not self._how:
            _, status = os.waitpid(pid, 0)
            return _ended(status)
        _, status = os.waitpid(pid, _WALL)
        if not os.WIFSTOPPED(status):
            return _ended(status)
        self._pt(_SETOPTIONS, pid, _OPTIONS)
        self._pt(_CONT, pid, 0)
        return self._follow(pid)

    def _follow(self, main: int) -> tuple[int, str]:
        ended: tuple[int, str] | None = None
        while True:
            try:
                pid, status = os.waitpid(-1, _WALL)
            except ChildProcessError:
                return ended or (-1, "SIGKILL")
            if not os.WIFSTOPPED(status):
                if pid == main:
                    ended = _ended(status)
                    return ended  # what it had started ends with the tracer
                continue
            stop = status >> 8
            if stop == _SECCOMP_STOP:
                if self._point(pid):
                    os.kill(main, signal.SIGKILL)
                    continue
                self._pt(_CONT, pid, 0)
                continue
            number = os.WSTOPSIG(status)
            passed = 0 if stop > 0xFF or number in (signal.SIGSTOP, signal.SIGTRAP) else number
            self._pt(_CONT, pid, passed)

    def _point(self, pid: int) -> bool:
        """Count a stop; True where the process is to end now."""
        regs = (ctypes.c_ulonglong * 27)()
        self._pt(_GETREGS, pid, ctypes.addressof(regs))
        number = int(regs[_ORIG_RAX])
        if not self._ours(pid, number, regs):
            return False
        self.points += 1
        if self._how == "full" and self.points >= self._at and number in _GROWS:
            regs[_ORIG_RAX] = 2**64 - 1
            regs[_RAX] = 2**64 - errno.ENOSPC
            self._pt(_SETREGS, pid, ctypes.addressof(regs))
            return False
        if self.points != self._at or self._how not in ("kill", "torn"):
            return False
        if self._how == "torn" and number in _TEARS and regs[_RDX] > 1:
            regs[_RDX] = int(regs[_RDX]) // 2
            self._pt(_SETREGS, pid, ctypes.addressof(regs))
            self._pt(_SYSCALL, pid, 0)
            os.waitpid(pid, _WALL)
        return True

    def _ours(self, pid: int, number: int, regs: Any) -> bool:
        """Whether a call is about a file below our folder; by its path always, a relative one is
        one of ours."""
        name = _GROWS.get(number) or _ORDERS[number]
        if name not in _BY_FD:
            return name == "msync" or self._named(pid, name, regs)
        try:
            target = os.readlink(f"/proc/{pid}/fd/{int(regs[_RDI])}")  # noqa: PTH115
        except OSError:
            return False
        return os.fsencode(target).startswith(self._under)

    def _named(self, pid: int, name: str, regs: Any) -> bool:
        at = 13 if name.endswith("at") or name == "renameat2" else _RDI  # rsi or rdi
        if name == "copy_file_range":
            return True
        try:
            with open(f"/proc/{pid}/mem", "rb") as memory:  # noqa: PTH123
                memory.seek(int(regs[at]))
                path = memory.read(4096).partition(b"\0")[0]
        except (OSError, ValueError):
            return True
        return not path.startswith(b"/") or path.startswith(self._under)

    def _pt(self, request: int, pid: int, data: int) -> None:
        libc().ptrace(request, pid, None, ctypes.c_void_p(data))


def _ended(status: int) -> tuple[int, str]:
    if os.WIFSIGNALED(status):
        return -1, signal.Signals(os.WTERMSIG(status)).name
    return os.waitstatus_to_exitcode(status), ""
