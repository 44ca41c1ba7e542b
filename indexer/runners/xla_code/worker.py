"""The child process that compiles and times by XLA: `python -m indexer.runners.xla_code.worker`.

It may crash or hang; whoever started it judges that from outside. It runs in any interpreter that
has jax, so nothing of ours is imported but what answers requests.
"""

from __future__ import annotations

import time
from typing import Any

from indexer.runners.harness.serving import Reply, serve
from indexer.runners.xla_code.executable import (
    Executable,
    disagreement,
    drawn,
    timed_in_rounds,
)

__all__ = ["main"]

_EFFORT = ("repeats", "max_repeats", "min_time_s")


class _Worker:
    """Holds one program, and the kernels of its partitions by id; of those that wait to be timed
    also their arrays."""

    def __init__(self) -> None:
        self.kernels: dict[str, Executable] = {}
        self.waiting: dict[str, list[Any]] = {}
        self.program: Executable | None = None
        self.given: list[Any] = []
        self.expected: list[Any] = []

    def answer(self, request: Reply, payload: bytes) -> Reply:
        try:
            reply: Reply = getattr(self, request["do"])(request, payload.decode())
        except ValueError as error:
            return {"status": "build", "error": str(error)}
        return reply

    def about(self, _: Reply, __: str) -> Reply:
        """What decides on the code, and how many threads there are."""
        import jax
        import jaxlib

        jax.devices("cpu")
        return {"status": "ok", "jax": jax.__version__, "jaxlib": jaxlib.__version__}

    def load(self, request: Reply, text: str) -> Reply:
        """A program, whose kernels follow. The results of its partitions must be its own."""
        self.kernels.clear()
        self.waiting.clear()
        self.program = Executable(text)
        self.given = drawn(request["parameters"], request["seed"])
        self.expected = self.program.call(self.given)
        return {"status": "ok", "compile_s": self.program.compile_s}

    def whole(self, request: Reply, _: str) -> Reply:
        """Seconds of the program that was loaded."""
        assert self.program is not None, "load comes before whole"
        self.program.warmed(self.given)
        wall, cpu = self.program.timed(self.given, **{k: request[k] for k in _EFFORT})
        return {"status": "ok", "times_s": wall, "cpu_s": cpu}

    def optimised(self, _: Reply, text: str) -> Reply:
        return {"status": "ok", "text": Executable(text).optimised()}

    def kernel(self, request: Reply, text: str) -> Reply:
        """Compiled, unless it is one of the program's that was, and called, so that `rounds` can
        time it, unless it is only wanted for a chain."""
        made = self.kernels.get(request["id"]) or Executable(text)
        self.kernels[request["id"]] = made
        reply: Reply = {"status": "ok", "compile_s": made.compile_s}
        if not request["called"]:
            return reply
        given = drawn(request["parameters"], request["seed"])
        if request["check"]:
            wrong = disagreement(made.call(given), Executable(text, plain=True).call(given))
            if wrong:
                return {"status": "wrong", "error": f"{wrong}, from the unoptimised kernel's"}
        made.warmed(given)
        self.waiting[request["id"]] = given
        return reply

    def rounds(self, request: Reply, _: str) -> Reply:
        """By id, seconds of kernels that were called; their arrays are given back. Nothing of those
        that a worker before this one called."""
        if missing := [one for one in request["ids"] if one not in self.waiting]:
            return {"status": "missing", "ids": missing}
        ready = {one: (self.kernels[one], self.waiting.pop(one)) for one in request["ids"]}
        asked = {name: request[name] for name in ("rounds", "apart_s", *_EFFORT)}
        return {"status": "ok", "times": timed_in_rounds(ready, **asked)}

    def chain(self, request: Reply, _: str) -> Reply:
        """Run the kernels one after the other; what they give must be what the program gives. What
        those to `keep` were given waits for `rounds`. With `times` also the processor's seconds of
        so many runs of all of them: what takes long is interrupted where others run too, which its
        kernels one by one hardly are."""
        if missing := [one["id"] for one in request["kernels"] if one["id"] not in self.kernels]:
            return {"status": "missing", "ids": missing}
        taken: dict[str, list[Any]] = {name: [] for name in request["keep"]}
        values = self._chained(request, taken)
        pairs = [(values[at], self.expected[n]) for n, at in request["outputs"]]
        wrong = disagreement([a for a, _ in pairs], [b for _, b in pairs])
        if wrong:
            return {"status": "wrong", "error": f"{wrong}, from the whole program's"}
        for name, given in taken.items():
            self.kernels[name].warmed(given)
            self.waiting[name] = given
        times = []
        for _n in range(request["times"]):
            start = time.process_time()
            self._chained(request, {})
            times.append(time.process_time() - start)
        return {"status": "ok", "times_s": times}

    def _chained(self, request: Reply, taken: dict[str, list[Any]]) -> dict[int, Any]:
        """By place in the program, what is needed at the end; into `taken` what those in it take,
        the last time they are run."""
        values = dict(zip(request["given"], self.given, strict=True))
        for one in request["kernels"]:
            given = [values[at] for at in one["takes"]]
            if one["id"] in taken:
                taken[one["id"]] = given
            found = self.kernels[one["id"]].call(given)
            values.update(zip(one["gives"], found, strict=True))
            for at in one["last"]:
                del values[at]
        return values


def main() -> None:
    """Serve until stdin ends."""
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    jax.config.update("jax_enable_x64", True)
    serve(_Worker().answer)


if __name__ == "__main__":
    main()
