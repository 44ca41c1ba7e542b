"""Kernels timed by requests to a worker."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from embeddb.core.errors import TensorError
from embeddb.core.records import Measurement
from embeddb.tensors.computation import Computation
from indexer.frontends.hlo.printer import hlo_text
from indexer.runners.base import RunOptions
from indexer.runners.xla_code.requests import COMPILE_S, bytes_of, effort, failed, parameters_of

if TYPE_CHECKING:
    from indexer.runners.harness.session import Session

__all__ = ["APART_S", "ROUNDS", "TOLERANCE", "KernelTimes"]

#: Relative to the largest value of a result, of reals of four bytes (`executable.disagreement`).
TOLERANCE = 2e-3
#: A neighbour on the host slows kernels down for a tenth of a second or for two: rounds in which
#: kernels take turns, and how far apart they begin at least.
ROUNDS, APART_S = 6, 0.1


class KernelTimes:
    """Times kernels, each called in several rounds: `times_s` are the least of each, and the least
    of these is what a kernel takes ("A Learned Performance Model for Tensor Processing Units",
    Section 4: the minimum of three runs)."""

    def __init__(self, session: Session, options: RunOptions) -> None:
        self._session, self._options = session, options

    def in_turns(
        self, kernels: Sequence[Computation], *, check: bool
    ) -> list[tuple[Computation, Measurement]]:
        """Each with what came out of it; where the worker dies of one, each is tried alone.

        Whatever goes wrong is a status. Raises: RunnerUnavailable.
        """
        found = {kernel.id: self.ready(kernel, check=check) for kernel in kernels}
        ready = {name: one for name, one in found.items() if one.ok}
        told, lost = self.timed(ready) if ready else ({}, None)
        if lost is None:
            found |= told
        elif len(kernels) == 1:
            found[kernels[0].id] = lost
        else:
            return [self.in_turns([kernel], check=check)[0] for kernel in kernels]
        return [(kernel, found[kernel.id]) for kernel in kernels]

    def timed(
        self, ready: Mapping[str, Measurement]
    ) -> tuple[dict[str, Measurement], Measurement | None]:
        """What `ready` gave of some kernels, by their ids, with times; or nothing, and what is
        wrong with all of them: the worker died. Raises: RunnerUnavailable."""
        asked = self._options
        message = {"do": "rounds", "ids": list(ready), "rounds": ROUNDS, "apart_s": APART_S}
        limit = COMPILE_S + ROUNDS * asked.timeout_s * len(ready)
        reply = self._session.request({**message, **effort(asked)}, timeout_s=limit)
        if reply["status"] != "ok":
            status = "crash" if reply["status"] == "missing" else reply["status"]
            return {}, failed(status, reply.get("error", "the worker was lost"))
        found = {}
        for name, (wall, cpu) in reply["times"].items():
            told = {"times_s": tuple(wall), "cpu_sum_s": tuple(cpu), "when": time.time()}
            found[name] = msgspec.structs.replace(ready[name], **told)
        return found, None

    def ready(self, kernel: Computation, *, called: bool = True, check: bool) -> Measurement:
        """Compiled and, unless that is all, called: without times, if it is ok.

        Raises: RunnerUnavailable.
        """
        asked = self._options
        if (need := bytes_of(kernel)) > asked.max_bytes:
            return failed("oom", f"the arrays need {need:,} bytes of {asked.max_bytes:,}")
        try:
            text = hlo_text(kernel)
        except TensorError as error:
            return failed("build", error.reason)
        message = {
            "do": "kernel",
            "id": kernel.id,
            "parameters": parameters_of(kernel),
            "seed": asked.seed,
            "called": called,
            "check": check,
        }
        limit = COMPILE_S + asked.timeout_s
        reply = self._session.request(message, [text.encode()], timeout_s=limit)
        if reply["status"] != "ok":
            return failed(reply["status"], reply.get("error", ""))
        return Measurement(
            compile_s=reply["compile_s"], tolerance=TOLERANCE if check else None, when=time.time()
        )
