"""Section of `check.py`: the tests of handles (tests/embeddb/handle/test_handle_cuda.py) with their
tensors and kernels on the GPU, those included that are skipped without one."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sections import Options, run

_ROOT = Path(__file__).resolve().parents[2]
_TESTS = _ROOT / "tests" / "embeddb" / "handle" / "test_handle_cuda.py"
#: What tests/conftest.py imports.
_NEEDS = ("pytest", "hypothesis")
_MOST_S = 100.0
#: With `--emulate`.
_FEW = "no_dense_columns or usual_configurations"


def section(options: Options) -> dict[str, Any]:
    """Run them by pytest, where it is installed, for at most `_MOST_S`."""
    if missing := [name for name in _NEEDS if find_spec(name) is None]:
        reason = f"no {' and no '.join(missing)} here"
        return {"ok": True, "skipped": reason, "table": [f"skipped: {reason}"]}
    # Warnings of torch that is newer than ours are no errors here.
    command = [sys.executable, "-m", "pytest", "-W", "default", "-p", "no:cacheprovider"]
    command += ["-k", _FEW] if options.emulate else []
    seconds = min(_MOST_S, options.left_s)
    try:
        ended = subprocess.run(
            [*command, str(_TESTS)],
            cwd=_ROOT,
            env={**os.environ, "EMBEDDB_TEST_GPU": "0" if options.emulate else "1"},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"ok": False, "error": f"not done within {seconds:.0f} s: give --seconds more"}
    lines = ended.stdout.strip().splitlines() or ended.stderr.strip().splitlines()[-1:]
    failures = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    ok = ended.returncode == 0
    return {"ok": ok, "failures": failures, "table": [*lines[-1:], *failures[:20]]}


if __name__ == "__main__":
    run(section)
