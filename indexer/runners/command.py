"""Programs and simulators of users: a command from a platform file, started and timed."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from embeddb.core.config import Config, Op
from embeddb.core.errors import RunnerUnavailable
from embeddb.core.records import Measurement
from embeddb.core.workload import Workload
from embeddb.kernels.build import cpu_model, threads_used
from embeddb.kernels.machine_failures import (
    AGAIN,
    LIMITS,
    Deadline,
    ProgramKilled,
    full_line,
    killed_by,
    refuse_full,
)
from embeddb.platforms.command import missing_program, program_path
from embeddb.platforms.machines import is_interpreter
from embeddb.platforms.platform import space_of
from indexer.runners.base import RunOptions
from indexer.runners.command_programs import (
    Ended,
    most_bytes,
    one_line,
    read_times,
    run_once,
    scratch_folder,
    write_subject,
)

if TYPE_CHECKING:
    from embeddb.platforms.command import CommandSpec
    from embeddb.platforms.platform import Platform

#: Variables passed to every program; the platform file lists others as `env`.
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH")
_VERSION_TIMEOUT_S = 20.0
_MAX_ERROR = 300
#: Lines of a program's output that the reason of its failure ends with.
_LAST_LINES = 3


class CommandRunner:
    """Run the `[command]` of a platform that was read from a file.

    A command from a database or a plan is refused: `available` returns the reason. The input file
    is written once per `run`, to a private folder that is removed at its end.
    """

    name = "command"

    def __init__(self, platform: Platform | None = None) -> None:
        self._platform = platform

    @classmethod
    def for_platform(cls, platform: Platform) -> CommandRunner:
        return cls(platform)

    def available(self) -> str | None:
        platform = self._platform
        if platform is None or platform.command is None or not platform.file:
            what = "this platform" if platform is None else f"platform {platform.id}"
            return (
                f"{what} is measured by a command, and a command is only run out of a platform "
                "file: name the TOML file with --platform"
            )
        spec = platform.command
        if missing := missing_program(spec, _folder(platform)):
            return f"{platform.file}: command.{missing}: build it, or correct its path"
        if spec.max_memory_mib and not hasattr(os, "sched_getaffinity"):
            return f"{platform.file}: command.max_memory_mib: memory can be limited on Linux only"
        return None

    def platform(self, *, threads: int = 0) -> Platform:
        """The platform; its instance is the digest of the program (its files' content except for an
        interpreter's, or the output of the `version` command), of the command, and of clock,
        threads and CPU where they matter.

        Raises: RunnerUnavailable.
        """
        platform, spec = self._ready()
        facts = {"command": spec.digest, **_identity(platform, spec)}
        if spec.time.clock_ghz:
            facts["clock_ghz"] = f"{spec.time.clock_ghz:g}"
        if "threads" in spec.names:
            facts["threads"] = str(threads_used(threads))
        if not platform.simulated:
            facts["cpu"] = cpu_model()
        return platform.at("", facts)

    def run(
        self, pattern: Workload, op: Op, configs: Sequence[Config], *, options: RunOptions
    ) -> Iterator[tuple[Config, Measurement]]:
        """Raises: UsageError for an operation the platform lacks; RunnerUnavailable, also for
        failures of the machine in the middle of it."""
        platform, spec = self._ready()
        space = space_of(platform, op, pattern)
        need = most_bytes(pattern)
        job = _Job(platform, spec, pattern, op, options)
        with scratch_folder() as folder:
            fits = need <= options.limit_bytes
            file = write_subject(pattern, folder, spec, op, options.seed) if fits else None
            for config in configs:
                reason = space.reason(config)
                if reason is not None:
                    yield config, _failed("invalid", reason, job.source)
                elif file is None:
                    reason = f"the {op.kind} file may need {need} bytes of {options.limit_bytes}"
                    yield config, _failed("oom", reason, job.source)
                else:
                    yield config, job.measure(config, space.numeric(config), file)

    def _ready(self) -> tuple[Platform, CommandSpec]:
        reason = self.available()
        platform = self._platform
        if reason is not None or platform is None or platform.command is None:
            raise RunnerUnavailable(reason or "")
        return platform, platform.command


@dataclass(frozen=True, slots=True)
class _Job:
    """The command for one operation; `measure` runs it for a configuration."""

    platform: Platform
    spec: CommandSpec
    subject: Workload
    op: Op
    options: RunOptions

    @property
    def source(self) -> str:
        return "simulator" if self.platform.simulated else "hardware"

    def measure(self, config: Config, values: Mapping[str, Any], matrix: Path) -> Measurement:
        """One measurement, tried again after a crash or a timeout if the platform allows it."""
        started = time.monotonic()
        output = matrix.with_name("output")
        argv = self._argv(values, matrix, output)
        outcome, tries = self._try(config, argv, output), 1
        while outcome.status in ("crash", "timeout") and tries <= self.spec.retries:
            outcome, tries = self._try(config, argv, output), tries + 1
        context = {"tries": tries, "wall_s": round(time.monotonic() - started, 6)}
        return msgspec.structs.replace(
            outcome, source=self.source, when=time.time(), context=context
        )

    def _argv(self, values: Mapping[str, Any], matrix: Path, output: Path) -> list[str]:
        values_by_name = {
            "matrix": str(matrix),
            "output": str(output),
            "threads": str(threads_used(self.options.threads)),
            "repeats": str(self.options.repeats),
            "op.kernel": self.op.name,
            "op.width": str(self.op.width),
            "op.dtype": self.op.dtype,
            **{f"config.{name}": _text(value) for name, value in values.items()},
        }
        first, *rest = (argument.expand(values_by_name) for argument in self.spec.run)
        return [program_path(first, _folder(self.platform)) or first, *rest]

    def _try(self, config: Config, argv: Sequence[str], output: Path) -> Measurement:
        """Run the program as often as needed; the time limit holds for all of it together.

        Raises: RunnerUnavailable if it failed for lack of a resource of this machine.
        """
        once = self.platform.simulated or "repeats" in self.spec.names
        deadline = Deadline(self.spec.timeout_s or self.options.timeout_s)
        times: list[float] = []
        for _ in range(1 if once else self.options.repeats):
            _remove(output)
            ended = _start(self.platform, self.spec, argv, output.parent, deadline)
            status, reason = self._status(ended)
            if status == "ok":
                try:
                    times += read_times(self.spec.time, self._timing_output(ended, output))
                except ValueError as error:
                    status, reason = "crash", f"{error}, exit status {ended.code}"
            if status == "crash":
                self._refuse_machine(ended, argv[0], config)
            if status == "crash" or self.spec.time.stream == "output":
                refuse_full(output.parent)  # or it was cut short, and may read as another number
            if status != "ok":
                return Measurement(status, error=_line(reason, ended))
        return Measurement("ok", tuple(times))

    def _refuse_machine(self, ended: Ended, program: str, config: Config) -> None:
        """Raises: RunnerUnavailable if a program did not crash, but was killed or found no space;
        ProgramKilled, which names the point, if the reason may be its own use of memory."""
        signal = "" if ended.problem else killed_by(ended.code)
        reason = (
            f"was ended by {signal}" if signal else full_line(ended.stderr.decode(errors="replace"))
        )
        if not reason:
            return
        hint = f"look at the memory and space that are left, {AGAIN}"
        message = one_line(f"{program}: {reason}")[:_MAX_ERROR]
        if signal not in LIMITS:
            raise RunnerUnavailable(message, hint=hint)
        limit = self.spec.max_memory_mib
        bound = f"command.max_memory_mib is {limit}" if limit else "set command.max_memory_mib"
        raise ProgramKilled(
            f"{message}, on {one_line(self.subject.name)} with {one_line(str(config))}",
            signal=signal,
            hint=f"if it needs too much memory, {bound} in {self.platform.file}, by which a "
            f"program fails of itself; else {hint}",
        )

    def _status(self, ended: Ended) -> tuple[str, str]:
        if ended.problem == "timeout":
            limit = self.spec.timeout_s or self.options.timeout_s
            return "timeout", f"not done within {limit:g} s, killed"
        if ended.problem == "output":
            return "crash", f"wrote more than {self.spec.max_output_bytes} bytes, killed"
        if ended.problem:
            return "crash", ended.problem
        for status, regex in self.spec.statuses:
            for output in (ended.stdout, ended.stderr):
                match = regex.search(output.decode(errors="replace"))
                if match:
                    return status, match[0] or f"its output matches {regex.pattern}"
        if ended.code < 0:
            return "crash", f"ended by signal {-ended.code}"
        return self.spec.exits.get(ended.code, "crash"), f"exit status {ended.code}"

    def _timing_output(self, ended: Ended, output: Path) -> str:
        """Output of the program with the time. Raises: ValueError."""
        stream = self.spec.time.stream
        if stream != "output":
            raw: bytes = getattr(ended, stream)
            return raw.decode(errors="replace")
        limit = self.spec.max_output_bytes
        if output.is_symlink() or not output.is_file():
            raise ValueError("wrote no file {output}")
        try:
            with output.open("rb") as file:
                raw = file.read(limit + 1)
        except OSError as error:
            raise ValueError(f"wrote an {{output}} that cannot be read: {error.strerror}") from None
        if len(raw) > limit:
            raise ValueError(f"wrote more than {limit} bytes to {{output}}")
        return raw.decode(errors="replace")


def _remove(output: Path) -> None:
    """Remove the last run's {output}, also if it is a folder."""
    if output.is_dir() and not output.is_symlink():
        shutil.rmtree(output, ignore_errors=True)
    else:
        output.unlink(missing_ok=True)


def _folder(platform: Platform) -> Path:
    return Path(platform.file).parent


def _start(
    platform: Platform, spec: CommandSpec, argv: Sequence[str], scratch: Path, deadline: Deadline
) -> Ended:
    passed = {name: os.environ[name] for name in (*_PASSED_ON, *spec.env) if name in os.environ}
    return run_once(
        argv,
        folder=_folder(platform),
        env={**passed, "TMPDIR": str(scratch)},
        deadline=deadline,
        max_bytes=spec.max_output_bytes,
        max_memory=spec.max_memory_mib << 20,
    )


def _identity(platform: Platform, spec: CommandSpec) -> dict[str, str]:
    """Facts that identify this build of the program.

    Raises: RunnerUnavailable if the version command gives no version.
    """
    folder = _folder(platform)
    if not spec.version:
        words = [argument.literal for argument in spec.run]
        program = program_path(words[0] or "", folder)
        files = [folder / word for word in words[1:] if word and _is_file(folder / word)]
        if program and not (files and is_interpreter(Path(program).name)):
            files.insert(0, Path(program))
        return {"program": " ".join(f"{file.name}:{_digest(file)}" for file in files)}
    argv = [program_path(spec.version[0], folder) or spec.version[0], *spec.version[1:]]
    with scratch_folder() as scratch:
        ended = _start(platform, spec, argv, scratch, Deadline(_VERSION_TIMEOUT_S))
    lines = ended.stdout.decode(errors="replace").strip().splitlines()
    if ended.problem or ended.code or not lines:
        raise RunnerUnavailable(
            f"{platform.file}: command.version: "
            + _line(ended.problem or f"exit status {ended.code}, and no version", ended)
        )
    return {"version": one_line(lines[0])}


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # an argument may be longer than any name
        return False


def _digest(path: Path) -> str:
    """Raises: RunnerUnavailable if the file cannot be read."""
    try:
        with path.open("rb") as file:
            whole = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8))
    except OSError as error:
        raise RunnerUnavailable(
            f"{path}: cannot be read, so this build has no name: {error.strerror}",
            hint="name builds by command.version instead",
        ) from None
    return whole.hexdigest()


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(int(value)) if isinstance(value, bool) else str(value)


def _failed(status: str, reason: str, source: str) -> Measurement:
    return Measurement(status, source=source, error=one_line(reason), when=time.time())


def _line(reason: str, ended: Ended) -> str:
    """The reason and the last lines of stderr, of stdout where that is empty, on one line."""
    streams = (raw.decode(errors="replace").strip() for raw in (ended.stderr, ended.stdout))
    lines = next(filter(None, streams), "").splitlines()[-_LAST_LINES:]
    last = " | ".join(one_line(line) for line in lines)
    reason = one_line(reason)
    # The end of the last lines is most useful: of a traceback it is the exception.
    room = _MAX_ERROR - len(reason) - 2
    return f"{reason}: {last[-room:]}" if last and room > 0 else reason[:_MAX_ERROR]


PLUGIN = CommandRunner
