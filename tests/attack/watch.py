"""What may not happen while an input is read: another error than ours, time, memory, and hands on
anything outside the scratch folder."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

#: Seconds after which an input is a hang, and of the processor's time from which on it is slow.
HARD_S, SLOW_S = 20.0, 10.0
#: Memory that an input may take over what was held before: this, or ten times its size if larger.
MOST_BYTES = 300 << 20
#: Address space of a child: what takes more ends in a MemoryError and not in a dead machine.
_SPACE = 6 << 30
_OWN = ("embeddb", "indexer", "tuners")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Audit events by which of their arguments are paths that change.
_CHANGES = {
    "os.remove": (0,), "os.rmdir": (0,), "os.mkdir": (0,), "os.rename": (0, 1), "os.link": (1,),
    "os.symlink": (1,), "os.truncate": (0,), "os.chmod": (0,), "os.chown": (0,),
    "shutil.rmtree": (0,),
}  # fmt: skip
_STARTS = {
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.startfile",
    "pty.spawn",
}


class _Hang(BaseException):
    """Raised by the alarm."""


class _Outside(BaseException):
    """Raised in place of a write, a program or a connection that nobody asked for."""


@dataclass(frozen=True)
class Fault:
    """`kind` is traceback, message, hang, slow, memory, outside or canary; equal `signature`s are
    taken for one fault."""

    kind: str
    signature: str
    told: str


@dataclass(frozen=True)
class Outcome:
    """Of one input: read, refused in one line (`clean`), or a fault."""

    seconds: float
    grown_bytes: int
    refused: bool
    fault: Fault | None


class Canary:
    """A folder of the user's files that nothing may touch."""

    NAMES = ("thesis.tex", "id_rsa", ".bashrc", "a" * 16 + "-1-1.npz", "data.mdb")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for name in self.NAMES:
            (folder / name).write_text(f"the user's {name}\n")
        self._before = self._seen()

    def _seen(self) -> list[tuple[str, int, int, int, int]]:
        with os.scandir(self.folder) as entries:
            stats = [(e.name, e.stat(follow_symlinks=False)) for e in entries]
        return sorted((n, s.st_ino, s.st_size, s.st_mtime_ns, s.st_mode) for n, s in stats)

    def touched(self) -> list[str]:
        """Names that are gone, new or changed since the last call."""
        now = self._seen()
        changed = {one[0] for one in set(now) ^ set(self._before)}
        if changed:
            self.__init__(self.folder)  # type: ignore[misc]
        return sorted(changed)


def scratch_root() -> Path:
    """In memory where there is such a place: an input a millisecond wears a disk out."""
    shm = Path("/dev/shm")
    return (
        shm if shm.is_dir() and os.access(shm, os.W_OK) else Path(os.environ.get("TMPDIR", "/tmp"))
    )


class Watch:
    """In a child of its own: it sets limits and hooks that stay.

    `scratch` is where inputs may be written; programs may be started by those kinds that do so.
    """

    def __init__(self, scratch: Path, *, starts: bool = False) -> None:
        self.scratch = scratch
        self.canary = Canary(scratch.parent / "canary")
        self._inside = str(scratch.parent.resolve()) + os.sep
        self._canary = str(self.canary.folder.resolve()) + os.sep
        self._starts = starts
        self._armed = False
        self._clear: int | None = None
        self._alarms, self._began = 0, 0.0

    def install(self) -> None:
        warnings.simplefilter("ignore")
        for name in ("HOME", "EMBEDDB_HOME", "XDG_CACHE_HOME", "TMPDIR"):
            place = self.scratch / name.lower()
            place.mkdir(exist_ok=True)
            os.environ[name] = str(place)
        tempfile.tempdir = None  # it is looked up once, and may have been
        os.chdir(self.scratch)
        resource.setrlimit(resource.RLIMIT_AS, (_SPACE, _SPACE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, self._alarm)
        sys.dont_write_bytecode = True
        sys.addaudithook(self._audit)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._armed:
            return
        if event == "open":
            path, _, flags = args
            if isinstance(path, str | bytes) and isinstance(flags, int) and flags & _WRITES:
                self._refuse_outside(event, path, follows=not flags & os.O_NOFOLLOW)
        elif event in _CHANGES:
            for path in (args[at] for at in _CHANGES[event]):
                if isinstance(path, str | bytes):
                    self._refuse_outside(event, path)
        elif event in _STARTS and not (self._starts and str(args[0]) == sys.executable):
            raise _Outside(f"{event} {str(args[:2])[:200]}")
        elif event in ("socket.connect", "socket.bind"):
            raise _Outside(f"{event} {args[1:]}")

    def _refuse_outside(self, event: str, path: str | bytes, *, follows: bool = False) -> None:
        """Where a path leads: links in its folders are followed, and one at its end where the
        event would follow it."""
        text = os.path.abspath(os.fsdecode(path))  # noqa: PTH100
        head, name = os.path.split(text)
        real = os.path.join(os.path.realpath(head), name)  # noqa: PTH118
        if follows or event in ("os.truncate", "os.chmod"):
            real = os.path.realpath(real)
        if real == os.devnull or real.startswith("/proc/self/"):
            return
        if not real.startswith(self._inside) or real.startswith(self._canary):
            raise _Outside(f"{event} {real}")

    def _alarm(self, _: int, __: FrameType | None) -> None:
        """On a busy machine twenty seconds may be two of our own: then it has twice more."""
        self._alarms += 1
        if self._alarms >= 3 or time.process_time() - self._began > HARD_S / 2:
            raise _Hang
        signal.setitimer(signal.ITIMER_REAL, HARD_S)

    def one(self, feed: Callable[[], None], size: int) -> Outcome:
        """What came of reading one input of `size` bytes."""
        from embeddb.core.errors import EmbeddbError

        fault, refused = None, False
        self._reset_peak()
        before = _peak()
        started = time.process_time()  # a busy machine is no fault
        try:
            with self._guarded():
                feed()
        except EmbeddbError as error:
            refused = True
            if len(str(error).splitlines()) != 1 or not isinstance(error.args[0], str):
                name = type(error).__name__
                fault = Fault("message", f"lines {name} {_place(error)}", repr(str(error))[:400])
        except BaseException as error:  # noqa: BLE001 - whatever comes out is the finding
            fault = _fault(error)
        seconds = time.process_time() - started
        grown = _peak() - before
        fault = fault or self._late(seconds, grown, size)
        return Outcome(seconds, grown, refused, fault)

    def _late(self, seconds: float, grown: int, size: int) -> Fault | None:
        touched = self.canary.touched()
        if touched:
            return Fault("canary", f"canary {touched}", f"touched outside the scratch: {touched}")
        if grown > max(MOST_BYTES, 10 * size):
            return Fault("memory", f"memory {grown >> 28}", f"{grown >> 20} MB for {size} bytes")
        if seconds > SLOW_S:
            return Fault("slow", f"slow {int(seconds)}", f"{seconds:.1f} s for {size} bytes")
        return None

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        self._alarms, self._began = 0, time.process_time()
        signal.setitimer(signal.ITIMER_REAL, HARD_S)
        self._armed = True
        try:
            yield
        finally:
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _reset_peak(self) -> None:
        """Let the kernel count the peak anew, where it can."""
        if self._clear is None:
            try:
                self._clear = os.open("/proc/self/clear_refs", os.O_WRONLY)
            except OSError:
                self._clear = -1
        if self._clear >= 0:
            os.pwrite(self._clear, b"5", 0)


def _peak() -> int:
    with open("/proc/self/status", "rb") as file:  # noqa: PTH123 - a thousand times a second
        text = file.read()
    at = text.find(b"VmHWM:")
    return int(text[at + 6 : text.find(b"kB", at)]) << 10 if at >= 0 else 0


def _place(error: BaseException) -> str:
    """The last line of ours, and where it ended."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if not {*_OWN}.isdisjoint(Path(f.filename).parts)]
    last = frames[-1] if frames else None
    shown = [f"{Path(f.filename).name}:{f.lineno}" for f in (*ours[-1:], last) if f is not None]
    return " <- ".join(dict.fromkeys(shown))


def _fault(error: BaseException) -> Fault:
    told = "".join(traceback.format_exception(error)).strip()[-1500:]
    if isinstance(error, _Hang):
        return Fault("hang", f"hang {_place(error).partition(' <- ')[0]}", told)
    if isinstance(error, _Outside):
        what = str(error).partition(" ")[0]
        return Fault("outside", f"outside {what} {_place(error)}", told)
    return Fault("traceback", f"{type(error).__name__} {_place(error)}", told)


def digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=4).hexdigest()
