"""SLURM, by `sbatch`, `squeue` and `scancel` alone: no accounting, no signals, no library."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from embeddb.core.errors import InputError, UsageError
from embeddb.core.files.new_file import write_new
from embeddb.core.files.own_files import OwnFolder
from indexer.executors.base import ChunkState, ExecutorOptions, Submission

__all__ = ["PLUGIN", "SlurmExecutor"]

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
_ID_LINE = re.compile(r"(?:Submitted batch job )?([0-9]{1,12})(?:;\S*| on cluster \S+)?")
#: Characters of what sbatch printed that a message has.
_MOST_PRINTED = 300
_RUNNING = ("RUNNING", "COMPLETING", "STAGE_OUT", "SUSPENDED", "STOPPED", "SIGNALING")
_WAITING = (
    *("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"),
    *("SPECIAL_EXIT", "RESIZING"),
)


class SlurmExecutor:
    """A job array for each submission. Raises: UsageError for an address, which SLURM has not."""

    name = "slurm"
    detached = True

    def __init__(self, options: ExecutorOptions | None = None) -> None:
        self._options = options or ExecutorOptions()
        if self._options.address:
            raise UsageError("the executor slurm takes no --address", hint="SLURM_CONF names one")

    def available(self) -> str | None:
        """Whether there are SLURM's programs."""
        lacking = [name for name in ("sbatch", "squeue", "scancel") if shutil.which(name) is None]
        if not lacking:
            return None
        return f"there is no {lacking[0]} here: run this on a login node, or install slurm-client"

    def start(self, work: Submission, *, after: str = "") -> str:
        """As `Executor.start`. The script is the user's, or `slurm.sh` in the campaign's folder."""
        script = self._script(work)
        asked = [
            *("sbatch", "--parsable", f"--array=0-{work.chunks - 1}", f"--job-name={work.name}"),
            *(f"--output={work.logs}/%a.log", "--open-mode=append", "--requeue"),
        ]
        if _JOB.fullmatch(after):
            asked.append(f"--dependency=afterany:{after}")
        done = _asked([*asked, str(script), *work.command()])
        job = _job_of(done.stdout)
        if done.returncode:
            printed = " ".join((done.stderr or done.stdout).split())
            words = printed[:_MOST_PRINTED] or f"sbatch ended with status {done.returncode}"
            raise InputError(words, where=str(script), hint=_remedy(printed, script, work.chunks))
        if not job:
            raise InputError(
                f"sbatch printed no job id, but {done.stdout.strip()[-_MOST_PRINTED:]!r}",
                where=str(script),
                hint="a job may have been queued all the same: "
                f"squeue --name={work.name}, scancel --name={work.name}",
            )
        return job

    def _script(self, work: Submission) -> Path:
        """Raises: InputError for a script in the folder that embeddb did not write: a folder may
        come from elsewhere, and what is run is named by the user."""
        if self._options.script:
            named = Path(self._options.script)
            if not named.is_file():
                raise InputError("there is no such script", where=str(named))
            return named
        text = _TEMPLATE.format(exclusive=_ALONE if work.exclusive else _SHARED).encode()
        own, place = OwnFolder(work.folder), work.folder / SCRIPT
        if not write_new(own, SCRIPT, text) and own.read(SCRIPT, _MOST_BYTES) != text:
            raise InputError(
                "not as embeddb wrote it",
                where=str(place),
                hint=f"if it is yours, name it: --script {place}",
            )
        return place

    def states(self, job: str) -> Mapping[int, ChunkState] | None:
        """As `Executor.states`; SLURM forgets a job some minutes after its end."""
        if not _JOB.fullmatch(job):
            return {}
        form = ["--noheader", "--array", "--states=all", "--format=%i %T"]
        done = _asked(["squeue", *form, f"--jobs={job}"])
        if done.returncode:
            return {} if "Invalid job id" in done.stderr else None
        found: dict[int, ChunkState] = {}
        for line in done.stdout.splitlines():
            place, _, state = line.strip().partition(" ")
            chunk = place.rpartition("_")[2]
            if chunk.isdecimal() and (known := _state(state.strip())) is not None:
                found[int(chunk)] = known
        return found

    def cancel(self, job: str) -> None:
        """As `Executor.cancel`."""
        if _JOB.fullmatch(job):
            _asked(["scancel", job])

    def close(self) -> None:
        """Holds nothing."""


def _job_of(printed: str) -> str:
    """The job id in what sbatch and a site's wrapper printed: the last line that is one, alone,
    with its cluster (`123;cluster`), or after `Submitted batch job`; empty without."""
    lines = [line.strip() for line in printed.splitlines()]
    ids = [match[1] for line in lines if (match := _ID_LINE.fullmatch(line))]
    return ids[-1] if ids else ""


def _remedy(printed: str, script: Path, chunks: int) -> str:
    """What changes what sbatch refused: its options for the array are on the command line."""
    if re.search(r"array|MaxSubmit|submit limit|MaxJobs", printed, re.IGNORECASE):
        return f"this array has {chunks} tasks: make it smaller by --chunks {max(2, chunks // 4)}"
    return f"edit the lines #SBATCH of {script}, then name it by --script"


def _state(word: str) -> ChunkState | None:
    if word in _RUNNING:
        return "running"
    if word in _WAITING:
        return "waiting"
    return "cancelled" if word.startswith("CANCELLED") else None


def _asked(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


PLUGIN = SlurmExecutor
