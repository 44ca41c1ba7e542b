"""Builds, checks and times the CUDA kernels on this machine's GPU, in at most four minutes.

    check.py [--seconds 240] [--matrices FOLDER] [--out build/gpu.json] [--emulate]

Each section (`sections.py`) runs in a process of its own, so that a kernel that faults or hangs
costs its section only. `--emulate` runs a little of everything on the CPU instead (needs g++): its
times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: Modules of this folder, in the order in which they run.
SECTIONS = ("check_kernels", "sample_times", "handle", "emitted", "handle_tests")
#: A section has so many seconds less than it is given before it is killed.
_GRACE_S = 5.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=240.0, help="time for all sections")
    parser.add_argument("--matrices", type=Path, default=ROOT / "shared" / "matrices")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu.json")
    parser.add_argument("--emulate", action="store_true", help="a little of everything, on the CPU")
    parser.add_argument("--sections", default=",".join(SECTIONS), help="names, comma-separated")
    asked = parser.parse_args()
    end = time.monotonic() + asked.seconds
    document: dict[str, Any] = {}
    names = asked.sections.split(",")
    for number, name in enumerate(names):
        begun = time.monotonic()
        result = run_section(name, asked, (end - begun) / (len(names) - number))
        table = result.pop("table", [])
        document[name] = {**result, "section_s": round(time.monotonic() - begun, 1)}
        print(f"== {name}: {'ok' if result['ok'] else 'FAILED'}, {document[name]['section_s']} s")
        for line in [*([result["error"]] if "error" in result else []), *table]:
            print(f"  {line}")
        sys.stdout.flush()
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(document, indent=1) + "\n")
    print(f"wrote {asked.out}")
    return 0 if all(section["ok"] for section in document.values()) else 1


def run_section(name: str, asked: argparse.Namespace, left_s: float) -> dict[str, Any]:
    """The result of a section, or the reason that there is none."""
    if left_s < 2 * _GRACE_S:
        return {"ok": False, "error": "no time was left for it: give --seconds more"}
    path = [str(ROOT), str(ROOT / "tests" / "fixtures"), os.environ.get("PYTHONPATH", "")]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "section.json")
        command = [sys.executable, str(HERE / f"{name}.py"), "--out", str(out)]
        command += ["--seconds", str(left_s - _GRACE_S), "--matrices", str(asked.matrices)]
        try:
            ended = subprocess.run(
                [*command, *(["--emulate"] if asked.emulate else [])],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in path if p)},
                stderr=subprocess.PIPE,
                text=True,
                timeout=left_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            failed = {"ok": False, "error": f"not done within {left_s:.0f} s, killed"}
            return {**_written(out), **failed}
        if ended.returncode == 0:
            return dict(json.loads(out.read_text()))
        last = ended.stderr.strip().splitlines()[-12:]
        failed = {"ok": False, "error": f"exit status {ended.returncode}", "table": last}
        return {**_written(out), **failed}


def _written(out: Path) -> dict[str, Any]:
    """The JSON of a section that failed; empty where the file is missing or cut off."""
    try:
        return dict(json.loads(out.read_text()))
    except (OSError, ValueError):
        return {}


if __name__ == "__main__":
    sys.exit(main())
