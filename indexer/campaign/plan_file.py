"""The file of a campaign's plan: written to be read and compared, read with distrust."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError, InputError
from embeddb.core.files.safe_read import reason_of
from embeddb.core.files.safe_write import OwnFolder
from embeddb.core.pattern import Pattern
from embeddb.matrix_files import read_pattern
from indexer.campaign.plan import PLAN_VERSION, Matrix, Plan

#: The file in a campaign's folder.
PLAN = "plan.json"
#: Larger plan files are refused before they are read.
_MOST_BYTES = 256 << 20


def write_plan(plan: Plan) -> bytes:
    """JSON with a line for each matrix, configuration and choice: small, and fit to be read."""
    return _json_lines(msgspec.to_builtins(plan)) + b"\n"


def _json_lines(value: Any) -> bytes:
    if isinstance(value, dict):
        items = (msgspec.json.encode(k) + b": " + _json_lines(v) for k, v in value.items())
        return b"{\n" + b",\n".join(items) + b"\n}"
    if isinstance(value, list) and value and isinstance(value[0], (list, dict)):
        return b"[\n" + b",\n".join(map(msgspec.json.encode, value)) + b"\n]"
    return msgspec.json.encode(value)


class _Version(msgspec.Struct):
    version: int = 0


def plan_bytes(file: Path) -> bytes:
    """What the file of a plan holds. Raises: InputError if there is none, or it cannot be read."""
    try:
        return OwnFolder(file.parent).read(file.name, _MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            "no campaign there",
            where=str(file.parent),
            hint="make one with `embeddb campaign plan`",
        ) from None
    except OSError as e:
        raise InputError(f"cannot be read: {reason_of(e)}", where=str(file)) from None


def read_plan(file: Path) -> Plan:
    """Raises: InputError if there is none, it is of another version, or does not fit together."""
    raw = plan_bytes(file)
    try:
        version = msgspec.json.decode(raw, type=_Version).version
        if version != PLAN_VERSION:
            raise InputError(
                f"a plan of version {version}, this program reads version {PLAN_VERSION}",
                where=str(file),
                hint="plan the campaign anew in another folder",
            )
        plan = msgspec.json.decode(raw, type=Plan)
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise InputError(f"not a plan: {e}", where=str(file)) from None
    reason = _fault(plan)
    if reason:
        raise InputError(f"not a plan: {reason}", where=str(file))
    return plan


def _fault(plan: Plan) -> str:
    """One line that says what does not fit together; empty if all does."""
    if not 1 <= plan.rounds <= 1000 or not 0 < plan.repeat_share <= 1 or plan.seed < 0:
        return "rounds, repeat_share or seed out of range"
    try:
        # Ops become file names, so only their canonical text will do.
        if [str(Op.parse(op)) for op in plan.ops] != plan.ops or len({*plan.ops}) != len(plan.ops):
            return "ops are not written as spmm:128, each once"
        for configs in plan.configs.values():
            for config in configs:
                Config(config)
    except EmbeddbError as e:
        return str(e)
    for op in plan.ops:
        choices, count = plan.choices.get(op, []), len(plan.configs.get(op, []))
        if len(choices) != len(plan.matrices):
            return f"choices of {op} for {len(choices)} of {len(plan.matrices)} matrices"
        for matrix, choice in zip(plan.matrices, choices, strict=True):
            known = all(0 <= at < count for at in choice.configs)
            if not known or len({*choice.configs}) != len(choice.configs):
                return f"the choice of {op} on {matrix.name} names unknown configurations"
            if not 0 <= choice.pinned <= len(choice.configs):
                return f"the choice of {op} on {matrix.name} pins too many"
    return ""


def from_file(matrix: Matrix) -> Pattern:
    """Raises: MatrixError if the file cannot be read."""
    return read_pattern(matrix.path, name=matrix.name, group=matrix.group)


def planned_pattern(matrix: Matrix, read: Callable[[Matrix], Pattern] = from_file) -> Pattern:
    """Raises: InputError if it is not the matrix that was planned, MatrixError."""
    pattern = read(matrix)
    if (*pattern.shape, pattern.nnz) != (matrix.m, matrix.n, matrix.nnz):
        raise InputError(
            f"not the matrix that was planned ({matrix.m} x {matrix.n}, {matrix.nnz})",
            where=matrix.path,
            hint="put that file back, or plan a campaign in another folder",
        )
    return pattern
