"""The examples of docs/howto/compile.md run."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from embeddb.handle import compile as of_compile
from embeddb.handle.choice import choice_of_config
from embeddb.kernels import build as cpu_build
from embeddb.platforms.platform import load_platform

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.gcc
@pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc")
def test_the_page_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With the platform's default in place of the starter's answer, whose import takes long."""

    def answered(pattern: Any, op: Any, *_: object, **__: object) -> Any:
        return choice_of_config(load_platform("cpu").default(op, pattern.sizes), pattern, op)

    monkeypatch.setattr(of_compile, "query_choice", answered)
    page = (ROOT / "docs" / "howto" / "compile.md").read_text(encoding="utf-8")
    block, tensors = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    names: dict[str, Any] = {}
    exec(compile(block.replace("calls=1000)", "calls=1000, build=True)"), "run.md", "exec"), names)
    assert "order=ijk" in capsys.readouterr().out
    expected = names["A"].multiply(names["C"] @ names["B"].T).toarray()
    assert abs(names["E"].toarray() - expected).max() < 1e-3
    assert abs(names["y"] - names["A"] @ names["B"][:, 0]).max() < 1e-3

    pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support")
        exec(compile(tensors, "run.md", "exec"), names)
    dense, ones = names["A"].to_dense(), 0 * names["X"][:1] + 1
    expected = 2 * dense.T.sum(1, keepdim=True) @ ones  # of both calls
    assert (names["X"].grad - expected).abs().max() < 1e-3
    cols = dense.nonzero(as_tuple=True)[1]
    assert (names["v"].grad - names["X"].sum(1)[cols]).abs().max() < 1e-3
