"""The child process that runs compiled kernels: `python -m indexer.runners.cpu_kernels.worker`.

It may crash or hang; whoever started it judges that from outside.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from embeddb.core.errors import RunnerUnavailable
from embeddb.kernels.called import (
    Plan,
    problem_of,
    scratch_values,
    strip_of,
    timed,
    timed_function,
)
from embeddb.kernels.forms import Converter, Form, FormSpec, Refusal, aligned
from indexer.runners.baselines.baselines import time_baseline
from indexer.runners.cpu_kernels import probe as cpu_probe
from indexer.runners.cpu_kernels.job import Loaded
from indexer.runners.harness.serving import Answering, Reply, serve

_loaded = cache(timed_function)


class Worker(Answering):
    """Answers requests; holds one loaded pattern."""

    def __init__(self) -> None:
        self.job: Loaded | None = None
        self.converter: Converter | None = None

    def load(self, request: Reply, payload: bytes) -> Reply:
        self.job = None
        self.converter = self.converter or Converter(request["library"])
        self.job = Loaded(request, payload)
        return {"status": "ok"}

    def measure(self, request: Reply) -> Reply:
        job, converter = self.job, self.converter
        assert job is not None and converter is not None, "load comes before measure"
        fields = request["form"]
        spec = FormSpec(**{**fields, "block": tuple(fields["block"])})
        form = job.form(spec, converter)
        if isinstance(form, Refusal):
            return {"status": form.status, "error": form.reason}
        reply: Reply = {"conversion_s": form.conversion_s}
        tasks = int(request["threads"] * request["pieces"])
        strip = strip_of(form, strip=int(request["strip"]), rows=spec.rows, tasks=tasks)
        sizes = _buffers(request, job, form, strip)
        need = sum(sizes) * job.b.itemsize
        if not job.make_room(need, keep=spec):
            return {
                **reply,
                "status": "oom",
                "error": f"result and scratch need {need} bytes beside the matrix",
            }
        # Scratch of no size is no null pointer: a kernel clears what it has of it.
        work = aligned((sizes[1],), job.dtype)
        d = aligned((sizes[0],), job.dtype) if sizes[0] else job.result()
        problem = problem_of(form, job.width, strip, (job.b, job.c, d, work))
        kernel = _loaded(request["library"])
        d.fill(np.nan)
        first, _ = timed(kernel, problem, _plan(request, (0, 1, 1)))
        if error := job.wrong(d, form.order):
            return {**reply, "status": "wrong", "error": error}
        # The check has flushed the caches; a long kernel warms them within its first repeat.
        warmups = 2 if first["times_s"][0] < 0.1 else 0
        effort = (warmups, request["repeats"], request["max_repeats"])
        times, switches = timed(kernel, problem, _plan(request, effort))
        return {**reply, "status": "ok", **times, "switches": switches}

    def baseline(self, request: Reply) -> Reply:
        assert self.job is not None, "load comes before baseline"
        return time_baseline(self.job, request)

    def probe(self, request: Reply) -> Reply:
        how = {"threads": request["threads"], "short": request["short"]}
        return {"status": "ok", "figures": cpu_probe.measured(request["library"], **how)}


def _buffers(request: Reply, job: Loaded, form: Form, strip: int) -> tuple[int, int]:
    """Values of a result that has no room in `job.d`, for the fill in it, and of the scratch."""
    filled = job.kernel == "sddmm" and form.val.size > job.d.size
    how = {"strip": strip, "width": job.width, "threads": request["threads"]}
    return form.val.size if filled else 0, scratch_values(request["scratch"], form, **how)


def _plan(request: Reply, effort: tuple[int, int, int]) -> Plan:
    how = (request["threads"], request["schedule"], request["chunk"])
    return Plan(*how, *effort, request["min_time_s"])


def main() -> None:
    """Serve until stdin ends."""
    serve(Worker().answer, machine=(OSError, RunnerUnavailable))


if __name__ == "__main__":
    main()
