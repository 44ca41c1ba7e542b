"""Platform files with a `[command]` table, and the programs they start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from embeddb.config import Config, Op
from embeddb.pattern import Pattern
from embeddb.platform import Platform, load_platform, runner_for
from embeddb.records import Measurement
from indexer.runners.base import RunOptions

OP = Op("spmm", 8)
A, B, ODD = (Config({"mode": mode}) for mode in ("a", "b", "-x '{matrix}' $(id) \"{\" %s"))
QUICK = RunOptions(repeats=2, timeout_s=5.0)
PATTERN = Pattern.from_coo((4, 5), [0, 0, 3], [1, 4, 2], name="../../x; rm -rf \x1b[1m $(id)")
RUN = '["sh", "sim.sh", "{matrix}", "{config.mode}", "{output}"]'
TOML = """
name = "other"
version = "1"
title = "Somebody's program"
simulated = SIMULATED
runner = "command"

[traits]
clock_ghz = 2

[command]
run = RUN
time = TIME
EXTRA

[[space]]
kernels = ["spmm", "spmv"]

[space.params]
mode = { type = "choice", values = ["a", "b", "-x '{matrix}' $(id) \\"{\\" %s"] }

[space.default]
mode = "a"
"""


def text_of(*, run: str = RUN, time: str = "", extra: str = "", simulated: bool = True) -> str:
    time = time or """{ regex = 't=(\\S+)', unit = "ms" }"""
    text = TOML.replace("RUN", run).replace("TIME", time).replace("EXTRA", extra)
    return text.replace("SIMULATED", str(simulated).lower())


def platform_of(folder: Path, script: str, **parts: Any) -> Platform:
    """A platform file beside a program `sim.sh`."""
    (folder / "sim.sh").write_text(script, encoding="utf-8")
    (folder / "other.toml").write_text(text_of(**parts), encoding="utf-8")
    return load_platform(folder / "other.toml")


def measured(
    folder: Path, script: str, *, options: RunOptions = QUICK, config: Config = A, **parts: Any
) -> Measurement:
    runner = runner_for(platform_of(folder, script, **parts))
    ((_, found),) = runner.run(PATTERN, OP, [config], options=options)
    assert isinstance(found, Measurement)
    assert "\n" not in found.error and found.error.isprintable() and len(found.error) <= 300
    return found
