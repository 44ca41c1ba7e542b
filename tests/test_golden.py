"""Outputs of the command line, kept: a change of the code's structure must not change them.

Each case runs command lines on one database and compares what they print, and the files they write,
with `tests/golden/outputs/CASE.txt`. Ids of answers, times of the clock, paths and facts of this
machine are replaced before. Where the text is equal, numbers may differ in the fifth digit, since
another processor sums in another order.

EMBEDDB_WRITE_GOLDEN=1 pytest tests/test_golden.py    writes the files anew: review the difference.
"""

from __future__ import annotations

import csv
import io
import lzma
import math
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import measured_kernels
import measured_nests
import pytest
from command_line import run_verb

from embeddb.tensors.tensor_text import tensor_text

GOLDEN = Path(__file__).parent / "golden" / "outputs"
EXAMPLES = Path(__file__).parents[1] / "examples"
WRITE = bool(os.environ.get("EMBEDDB_WRITE_GOLDEN"))

#: Of an instance of the shipped runs, so that answers do not depend on the processor of the test.
CPU = "cpu@70882216"
#: Matrices of the H200 log that the golden database holds; the rest are asked about.
GPU_MATRICES = 14
ASKED = ("1138_bus", "lp_greenbea", "netscience", "cora_features", "west0479")

NESTS = (
    "query {db} gemm.c --platform nest-cpu@somewhere --op nest -D N=64 -k 3",
    "query {db} gemm.c --platform nest-cpu@somewhere --op nest -D N=64 --json",
    "explain {db} last",
    "explain {db} last --json",
    "explain {db} last --html {out}/nest.html",
    "query {db} gemm.c --platform nest-cpu@somewhere --op nest -D N=64 --emit {out}/scheduled.c",
    "nest import {db} gemm.c -D N=48",
    "nest show {db} gemm.c -D N=64",
    "eval {db} --op nest --seeds 1",
    "eval {db} --op nest --seeds 1 --json",
    "db stat {db} --json",
    "db stat {db}",
    "report {db} --json",
    "report {db}",
    "report {db} --html {out}/report.html",
)
KERNELS = (
    "query {db} kernel.json --platform tile-cpu@somewhere --op tile",
    "query {db} kernel.json --platform tile-cpu@somewhere --op tile --json",
    "explain {db} last",
    "explain {db} last --json",
    "explain {db} last --html {out}/kernel.html",
    "emit {db} last -o {out}/tiled",
    "kernel show {db} kernel.json",
    "eval {db} --op tile --seeds 1",
    "eval {db} --op tile --seeds 1 --json",
    "db stat {db}",
    "report {db} --json",
    "report {db} --html {out}/report.html",
)
SIMULATOR = (
    "index {db} sim.csv --platform my_simulator.toml --matrices matrices --yes",
    "index {db} sim.csv --platform my_simulator.toml --matrices matrices --yes --json",
    "query {db} matrices/m7.mtx --platform my-simulator --op spmm:32",
    "query {db} matrices/new.mtx --platform my-simulator --op spmm:32 --why",
    "query {db} matrices/new.mtx --platform my-simulator --op spmm:32 --json",
    "explain {db} last",
    "explain {db} last --json",
    "explain {db} m7",
    "tune {db} m7 --op spmm:32 --platform my-simulator --hardware-seconds 2 --rounds 1",
    "eval {db} --seeds 1 --json",
    "eval {db} --seeds 1 --tuner random --tuner transfer",
    "platform show my_simulator.toml",
    "platform check my_simulator.toml",
    "db stat {db} --json",
    "report {db}",
    "report {db} --html {out}/report.html",
    "query {db} nowhere --platform my-simulator --op spmm:32",
    "query {db} m7 --platform my-simulator --op spmv",
    "explain {db} r000000000000",
)
GPU = (
    "index {db} gpu.csv --platform {shared}/runs/gpu-h200/cuda.toml --matrices {shared}/matrices",
    "db stat {db}",
    *(
        f"query {{db}} {{shared}}/matrices/{name}.npz --platform cuda --op {op}"
        for name in ASKED
        for op in ("spmm:32", "sddmm:128")
    ),
    "query {db} {shared}/matrices/west0479.npz --platform cuda --op spmm:32 --why --json",
    "explain {db} last",
    "explain {db} last --json",
    "explain {db} last --html {out}/gpu.html",
    "eval {db} --op spmm:32 --seeds 1 --json",
    "report {db} --json",
)
STARTER = (
    *(
        f"query {{db}} {{shared}}/matrices/{name}.npz --platform {CPU} --op {op}"
        for name in ASKED
        for op in ("spmm:512", "spmv", "sddmm:128")
    ),
    f"query {{db}} {{shared}}/matrices/west0479.npz --platform {CPU} --op spmm:128 --calls 50",
    f"query {{db}} {{shared}}/matrices/west0479.npz --platform {CPU} --op spmm:64 --reproducible",
    f"query {{db}} {{shared}}/matrices/netscience.npz --platform {CPU} --op spmm:64 --why --json",
    "explain {db} last",
    "explain {db} last --json",
    "explain {db} last --html {out}/matrix.html",
    "emit {db} last -o {out}/spmm",
    "emit {db} --config order=ij,format=csr,lanes=8,unroll=4,threads=one --op spmv -o {out}/y",
)

_PLAIN = (
    (r"\br[0-9a-f]{12}\b", "rID"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?", "TIME"),
    (r"\d{4}-\d\d-\d\d", "DAY"),
    (r"\b1[789]\d{8}(\.\d+)?\b", "SECONDS"),
    (r'"(seconds|took_s|elapsed_s|answered_s|made_s)": [\d.e-]+', r'"\1": S'),
    (
        r'"(read|open|features|search|transfer|rank|predict|insight|store|vector|model)":'
        r" \d+\.\d{6,}(e-\d+)?",
        r'"\1": S',
    ),
    (r" in \d+(\.\d+)? (ms|s|min)\b", " in # s"),
    # Rows are committed in batches, which are cut by the clock.
    (r'("generation": |generation |database generation</dt><dd>)\d+', r"\1#"),
    # So the size of the file differs, too.
    (r'("generation": #,\n  "bytes": )\d+', r"\1#"),
    (r"(?m)^.*: [\d,]+ of [\d,]+ \(\d+ %\).*\n", ""),
    # Progress, shown where something takes more than a moment.
    (r"(?m)^(preparing answers for|unpacking|unpack:) .*\n", ""),
    (r"(?m)^\w+( [\w.]+)?: [\d,]+\n", ""),
)
_NUMBER = re.compile(r"(?<![\w#])-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")


def plain(text: str, folders: dict[str, str]) -> str:
    for path, word in folders.items():
        text = text.replace(path, word)
    for pattern, word in _PLAIN:
        text = re.sub(pattern, word, text)
    return text


def same(golden: str, output: str) -> bool:
    """Equal text, numbers to a relative 1e-4."""
    if golden == output:
        return True
    if _NUMBER.sub("#", golden) != _NUMBER.sub("#", output):
        return False
    pairs = zip(_NUMBER.findall(golden), _NUMBER.findall(output), strict=True)
    values = ((float(a.replace(",", "")), float(b.replace(",", ""))) for a, b in pairs)
    return all(math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-9) for a, b in values)


def printed(words: Sequence[str]) -> str:
    stream = io.StringIO()
    with redirect_stdout(stream), redirect_stderr(stream):
        code = run_verb(words)
    return f"{stream.getvalue()}[exit {code}]\n"


def written(out: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(p for p in out.rglob("*") if p.is_file()):
        yield path.relative_to(out).as_posix(), path.read_text(encoding="utf-8")
    shutil.rmtree(out)
    out.mkdir()


def check(case: str, lines: Sequence[str], places: dict[str, Path]) -> None:
    """Run the lines in order and compare each output; fail with the lines that differ."""
    out = Path("out").absolute()
    out.mkdir()
    places = {**places, "out": out}
    folders = {str(p): f"<{name}>" for name, p in places.items() if p.is_absolute()}
    folders = {**folders, str(Path.cwd()): "<here>", str(EXAMPLES): "<examples>"}
    parts = []
    for line in lines:
        words = [w.format(**{k: str(v) for k, v in places.items()}) for w in shlex.split(line)]
        parts.append(f"$ embeddb {line}\n{printed(words)}")
        parts += [f"--- {name}\n{text}\n" for name, text in written(out)]
    output = [plain(part, folders) for part in parts]
    path = GOLDEN / f"{case}.txt.xz"
    mark = "\n\x1e\n"
    if WRITE:
        GOLDEN.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lzma.compress(mark.join(output).encode(), preset=9))
        return
    golden = lzma.decompress(path.read_bytes()).decode().split(mark)
    Path("golden.txt").write_text("\n".join(golden))
    Path("output.txt").write_text("\n".join(output))
    differing = [
        new.splitlines()[0] for old, new in zip(golden, output, strict=True) if not same(old, new)
    ]
    here = Path.cwd()
    assert not differing, f"diff {here}/golden.txt {here}/output.txt\n" + "\n".join(differing)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    return tmp_path


GEMM = """
#define N 64
double A[N][N], B[N][N], C[N][N];
void gemm(void) {
#pragma scop
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++)
      for (int k = 0; k < N; k++)
        C[i][j] += A[i][k] * B[k][j];
#pragma endscop
}
"""


def test_nests(here: Path) -> None:
    Path("gemm.c").write_text(GEMM)
    check("nests", NESTS, {"db": measured_nests.make(here / "nests")})


def test_kernels(here: Path) -> None:
    Path("kernel.json").write_bytes(tensor_text(measured_kernels.asked()))
    check("kernels", KERNELS, {"db": measured_kernels.make(here / "kernels")})


def _matrix(path: Path, seed: int) -> None:
    """A matrix whose rows are short and even, or few and long, by its seed."""
    rows, long = 24 + 8 * seed, 2 + (seed * 5) % 9
    at = [(r, (r * (1 + seed) + 3 * e) % rows) for r in range(rows) for e in range(1 + (r % long))]
    at = sorted(set(at))
    head = f"%%MatrixMarket matrix coordinate pattern general\n{rows} {rows} {len(at)}\n"
    path.write_text(head + "".join(f"{r + 1} {c + 1}\n" for r, c in at))


def _simulated(path: Path, matrices: Path) -> None:
    import importlib.util
    from itertools import product
    from types import SimpleNamespace

    spec = importlib.util.spec_from_file_location("my_simulator", EXAMPLES / "my_simulator.py")
    assert spec is not None and spec.loader is not None
    simulator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(simulator)
    names = ("tile_rows", "lanes", "dataflow", "double_buffer", "prefetch")
    values = ((16, 64, 256), (4, 8, 16), ("row", "outer"), (0, 1), (1, 4))
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("matrix", "op", *names, "cycles"))
        for seed in range(10):
            columns, lengths = simulator.row_lengths(matrices / f"m{seed}.mtx")
            for chosen in product(*values):
                config = dict(zip(names, chosen, strict=True))
                if not config["double_buffer"]:
                    config["prefetch"] = ""
                asked = SimpleNamespace(**{**config, "prefetch": config["prefetch"] or 0}, width=32)
                took = simulator.cycles(columns, lengths, asked)
                rows.writerow((f"m{seed}", "spmm:32", *config.values(), took))


def test_simulator(here: Path) -> None:
    Path("matrices").mkdir()
    for seed in range(10):
        _matrix(here / "matrices" / f"m{seed}.mtx", seed)
    _matrix(here / "matrices" / "new.mtx", 11)
    for name in ("my_simulator.py", "my_simulator.toml"):
        shutil.copy(EXAMPLES / name, name)
    _simulated(here / "sim.csv", here / "matrices")
    check("simulator", SIMULATOR, {"db": here / "sim.db"})


@pytest.mark.slow
@pytest.mark.shared
def test_gpu(here: Path, shared: Path) -> None:
    log = shared / "runs" / "gpu-h200" / "runs.csv.xz"
    if not log.is_file():
        pytest.skip("needs ../shared/runs/gpu-h200")
    with lzma.open(log, "rt") as lines, (here / "gpu.csv").open("w") as kept:
        kept.write(next(lines))
        names: dict[str, None] = {}
        for line in lines:
            name = line.partition(",")[0]
            if name not in ASKED and (name in names or len(names) < GPU_MATRICES):
                names[name] = None
                if ",spmm:32," in line or ",sddmm:128," in line:
                    kept.write(line)
    check("gpu", GPU, {"db": here / "gpu.db", "shared": shared})


@pytest.mark.slow
@pytest.mark.shared
def test_starter(here: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embeddb.kernels.build.vector_bytes", lambda: 32)  # as emitted code has it
    check("starter", STARTER, {"db": Path("starter"), "shared": shared})
