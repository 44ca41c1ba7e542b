"""A tensor graph as JSON: the canonical text of the store, and a file form with names.

    {"tensors": 1, "kind": "kernel", "name": "dot_add", "group": "mlp", "names": ["x", "w", ...],
     "code": {"operations": [["parameter", [["f32", [64, 128], [1, 0]]], [], {"number": 0}], ...,
                             ["dot", [["f32", [64, 32], [1, 0]]], [0, 1],
                              {"lhs_contracting": [1], "rhs_contracting": [0]}]],
              "outputs": [2]}}

An operation is `[opcode, results, operands, attributes]`, a result `[type, dims, layout]`. Where a
module had other parameters or outputs, or in another order, `"signature": {"parameters": [1, 0,
RESULT], "outputs": [2, 2]}` lists their positions, and the results of parameters that nothing
reads.
"""

from __future__ import annotations

import json
from typing import Any

from embeddb.core.errors import TensorError
from embeddb.core.files.safe_read import refusing
from embeddb.tensors.check import MOST_OPERATIONS, computation
from embeddb.tensors.tensor_graph import (
    MOST_RANK,
    Attribute,
    Operation,
    Shape,
    Signature,
    TensorGraph,
    code_of,
)

#: Longest text of a graph.
MOST_TEXT = 1 << 26
_FORM = 1
#: Limits; texts of attributes may be bodies (`embeddb.tensors.analysis`).
_MOST_NUMBERS, _MOST_WORD, _MOST_ATTRIBUTE = 256, 400, 1024


def tensor_text(graph: TensorGraph) -> bytes:
    """The file form, one line of UTF-8."""
    document = {
        "tensors": _FORM,
        "kind": graph.kind,
        "name": graph.name,
        "group": graph.group,
        "names": list(graph.names),
        "code": code_of(graph),
    }
    if (signature := graph.signature) is not None:
        document["signature"] = {
            "parameters": [
                [one.dtype, one.dims, one.layout] if isinstance(one, Shape) else one
                for one in signature.parameters
            ],
            "outputs": signature.outputs,
        }
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def tensor_from_text(text: bytes | str, *, where: str = "") -> TensorGraph:
    """Read the file form and check it. Raises: TensorError, one line that names the part."""
    with refusing(TensorError, where=where):
        if len(text) > MOST_TEXT:
            raise TensorError(f"a tensor graph has at most {MOST_TEXT} characters")
        document = json.loads(text)
        if not isinstance(document, dict) or document.get("tensors") != _FORM:
            raise TensorError(f'is not a tensor graph: it needs "tensors": {_FORM}')
        code = document.get("code")
        if not isinstance(code, dict) or sorted(code) != ["operations", "outputs"]:
            raise TensorError('"code" must have "operations" and "outputs"')
        operations = _list(code["operations"], "operations", MOST_OPERATIONS)
        return computation(
            [_operation(value, f"operations[{at}]") for at, value in enumerate(operations)],
            _numbers(code["outputs"], "outputs", MOST_OPERATIONS),
            kind=_word(document.get("kind", ""), "kind"),
            name=_word(document.get("name", ""), "name"),
            group=_word(document.get("group", ""), "group"),
            names=[_word(n, "names") for n in _list(document.get("names", []), "names")],
            signature=_signature(document.get("signature")),
        )


def _signature(value: Any) -> Signature | None:
    if value is None:
        return None
    if not isinstance(value, dict) or sorted(value) != ["outputs", "parameters"]:
        raise TensorError('"signature" must have "parameters" and "outputs"')
    parameters = _list(value["parameters"], "signature.parameters")
    return Signature(
        tuple(
            _shape(one, "signature")
            if isinstance(one, list)
            else _numbers([one], "signature.parameters")[0]
            for one in parameters
        ),
        _numbers(value["outputs"], "signature.outputs", MOST_OPERATIONS),
    )


def _list(value: Any, where: str, most: int = MOST_OPERATIONS) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise TensorError(f"{where}: must be a list of at most {most}")
    return value


def _numbers(value: Any, where: str, most: int = _MOST_NUMBERS) -> tuple[int, ...]:
    if any(type(n) is not int or abs(n) >= 1 << 62 for n in _list(value, where, most)):
        raise TensorError(f"{where}: must be whole numbers")
    return tuple(value)


def _word(value: Any, where: str, most: int = _MOST_WORD) -> str:
    if not isinstance(value, str) or len(value) > most or not value.isprintable():
        raise TensorError(f"{where}: must be a short text")
    return value


def _operation(value: Any, where: str) -> Operation:
    if not isinstance(value, list) or len(value) != 4 or not isinstance(value[3], dict):
        raise TensorError(f"{where}: an operation is [opcode, results, operands, attributes]")
    opcode, results, operands, attributes = value
    return Operation(
        _word(opcode, where),
        tuple(_shape(shape, where) for shape in _list(results, where)),
        _numbers(operands, where, MOST_OPERATIONS),
        {_word(name, where): _attribute(v, f"{where}.{name}") for name, v in attributes.items()},
    )


def _shape(value: Any, where: str) -> Shape:
    if not isinstance(value, list) or len(value) != 3:
        raise TensorError(f"{where}: a result is [type, dims, layout]")
    dims, layout = (_numbers(v, where, MOST_RANK) for v in value[1:])
    if len(layout) != len(dims):
        raise TensorError(f"{where}: layout {layout} does not fit the shape {dims}")
    return Shape(_word(value[0], where), dims, layout)


def _attribute(value: Any, where: str) -> Attribute:
    if isinstance(value, list):
        return _numbers(value, where)
    if isinstance(value, str):
        return _word(value, where, _MOST_ATTRIBUTE)
    return _numbers([value], where)[0]
