"""SLURM executor, by `sbatch`, `squeue` and `scancel` alone: no accounting, no signals, no
library."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from embeddb.core.errors import InputError, UsageError
from embeddb.core.files.safe_write import OwnFolder, write_new
from indexer.executors.base import ChunkState, ExecutorOptions, Submission

SCRIPT = "slurm.sh"
_MOST_BYTES = 1 << 20
_TEMPLATE = """\
#!/bin/bash
# How embeddb submits this campaign's work to SLURM. It is yours to edit: embeddb wrote it once and
# leaves it alone. After a change name it: embeddb campaign run ... --executor slurm --script FILE
# A chunk is a minute of work or more; one that is cut off by the limit goes on in the next run.
#SBATCH --time=01:00:00
#SBATCH --nodes=1
#SBATCH --ntasks=1
{exclusive}
# What many clusters ask for (take one # away):
##SBATCH --account=PROJECT
##SBATCH --partition=PARTITION
# Nodes of one kind, if the partition has several: times of another kind are refused.
##SBATCH --constraint=KIND
##SBATCH --mem=8G

# module load python gcc
# source $HOME/venv/bin/activate

# In a container: exec apptainer exec image.sif "$@" --chunk "$SLURM_ARRAY_TASK_ID"
exec "$@" --chunk "$SLURM_ARRAY_TASK_ID"
"""
_ALONE = "# A node for itself: two timings on a node disturb one another.\n#SBATCH --exclusive"
_SHARED = "# Nothing is timed: chunks may share a node."
_JOB = re.compile(r"[0-9]{1,12}")
_PARSABLE = re.compile(r"([0-9]{1,12})(?:;[\w.-]+)?")
_SUBMITTED = re.compile(r"Submitted batch job ([0-9]{1,12})\b")
#: Messages of sbatch for a job array above a limit of the site, the account or the user.
_TOO_MANY = ("array", "QOSMaxSubmit", "MaxSubmit", "job submit limit")
_RUNNING = ("RUNNING", "COMPLETING", "STAGE_OUT", "SUSPENDED", "STOPPED", "SIGNALING")
_WAITING = (
    *("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"),
    *("SPECIAL_EXIT", "RESIZING"),
)


class SlurmExecutor:
    """Run each submission as a job array. Raises: UsageError for an address."""

    name = "slurm"
    detached = True

    def __init__(self, options: ExecutorOptions | None = None) -> None:
        self._options = options or ExecutorOptions()
        if self._options.address:
            raise UsageError("the executor slurm takes no --address", hint="SLURM_CONF names one")

    def available(self) -> str | None:
        """None if SLURM's programs are installed, else what to do."""
        lacking = [name for name in ("sbatch", "squeue", "scancel") if shutil.which(name) is None]
        if not lacking:
            return None
        return f"{lacking[0]} not found: run this on a login node, or install slurm-client"

    def start(self, work: Submission, *, after: str = "") -> str:
        """Implement `Executor.start` with the user's script, or `slurm.sh` in the campaign's
        folder."""
        script = self._script(work)
        words = [
            *("sbatch", "--parsable", f"--array=0-{work.chunks - 1}", f"--job-name={work.name}"),
            *(f"--output={work.logs}/%a.log", "--open-mode=append", "--requeue"),
        ]
        if _JOB.fullmatch(after):
            words.append(f"--dependency=afterany:{after}")
        done = _called([*words, str(script), *work.command()])
        if done.returncode:
            reason = _one_line(done.stderr) or _one_line(done.stdout) or f"exit {done.returncode}"
            raise InputError(reason, where=str(script), hint=_remedy(reason, work.chunks, script))
        # A job whose id is not read would run uncollected and be submitted again.
        job = _job_id(done.stdout) or self._job_named(work.name)
        if job is None:
            raise InputError(
                f"sbatch printed no job id: {_one_line(done.stdout)!r}",
                where=str(script),
                hint=f"if squeue lists the job, end it by: scancel --name={work.name}",
            )
        return job

    def _job_named(self, name: str) -> str | None:
        """The id of the job of that name in the queue, if there is exactly one."""
        done = _called(["squeue", "--noheader", "--format=%F", f"--name={name}"])
        jobs = {line.strip() for line in done.stdout.splitlines()}
        one = jobs.pop() if len(jobs) == 1 and not done.returncode else ""
        return one if _JOB.fullmatch(one) else None

    def _script(self, work: Submission) -> Path:
        """Path of the submission script.

        Raises: InputError for a script in the folder that embeddb did not write: a folder may come
        from elsewhere, so a user must name the script that is run.
        """
        if self._options.script:
            named = Path(self._options.script)
            if not named.is_file():
                raise InputError("no such script", where=str(named))
            return named
        text = _TEMPLATE.format(exclusive=_ALONE if work.exclusive else _SHARED).encode()
        own, place = OwnFolder(work.folder), work.folder / SCRIPT
        if not write_new(own, SCRIPT, text) and own.read(SCRIPT, _MOST_BYTES) != text:
            raise InputError(
                "the script was not written by embeddb, or was changed",
                where=str(place),
                hint=f"if it is yours, name it: --script {place}",
            )
        return place

    def states(self, job: str) -> Mapping[int, ChunkState] | None:
        """Implement `Executor.states`; SLURM forgets a job some minutes after its end."""
        if not _JOB.fullmatch(job):
            return {}
        form = ["--noheader", "--array", "--states=all", "--format=%i %T"]
        done = _called(["squeue", *form, f"--jobs={job}"])
        if done.returncode:
            return {} if "Invalid job id" in done.stderr else None
        states: dict[int, ChunkState] = {}
        for line in done.stdout.splitlines():
            place, _, state = line.strip().partition(" ")
            chunk = place.rpartition("_")[2]
            if chunk.isdecimal() and (chunk_state := _state(state.strip())) is not None:
                states[int(chunk)] = chunk_state
        return states

    def cancel(self, job: str) -> None:
        if _JOB.fullmatch(job):
            _called(["scancel", job])

    def close(self) -> None:
        """No-op: it has no resources."""


def _state(word: str) -> ChunkState | None:
    if word in _RUNNING:
        return "running"
    if word in _WAITING:
        return "waiting"
    return "cancelled" if word.startswith("CANCELLED") else None


def _called(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def _job_id(printed: str) -> str | None:
    """The job id in the standard output of `sbatch --parsable`: `ID` or `ID;CLUSTER` on a line of
    its own, the last of them, since a site's wrapper or plug-in may print lines around it."""
    ids = [m[1] for line in printed.splitlines() if (m := _PARSABLE.fullmatch(line.strip()))]
    ids = ids or _SUBMITTED.findall(printed)
    return ids[-1] if ids else None


def _remedy(reason: str, chunks: int, script: Path) -> str:
    """Hint for a refusal by sbatch."""
    if chunks > 1 and any(words in reason for words in _TOO_MANY):
        return f"this job array has {chunks} jobs; submit fewer: --chunks {max(1, chunks // 2)}"
    return f"edit the #SBATCH lines of {script}, then name it: --script {script}"


def _one_line(text: str) -> str:
    """End of a program's output, on one line."""
    return " ".join(text.split())[-500:]


PLUGIN = SlurmExecutor
