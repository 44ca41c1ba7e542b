"""The arrays declared in an `.sdfg` file, created at their first use: sizes may depend on loops
around, and a transient of a nested program exists once per iteration of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import Any

from embeddb.core.errors import NestError
from embeddb.nests.nest import index_range, loop_range
from embeddb.nests.parts import Affine, Array, Index, Loop
from indexer.frontends.dace.data import Place, View
from indexer.frontends.dace.symbolic import index_of, number_of
from indexer.frontends.tree import constant

_TYPES = {
    **{"float32": "f32", "float": "f32", "float64": "f64", "double": "f64"},
    **{"int32": "i32", "int": "i32", "uint32": "i32", "int64": "i64", "uint64": "i64"},
    "bool": "i32",
}
_KINDS = ("Array", "Scalar")
#: DaCe leaves defaults out of a file.
_DEFAULT_TYPE = "int32"


class Containers:
    """The arrays of one program. `described`: its declarations; `handed`: views passed by the
    program around; `private`: the loops around a nested program."""

    def __init__(
        self,
        described: Mapping[str, Any],
        handed: Mapping[str, View],
        private: tuple[Loop, ...] = (),
    ) -> None:
        self._described = described
        self._views = dict(handed)
        self._private = private

    def ones(self, name: str, place: Place) -> list[bool]:
        """For every declared dimension, True if it is known to have one element.

        Raises: NestError for an unknown array.
        """
        kind, attributes = self._declaration(name)
        shape = [] if kind == "Scalar" else attributes.get("shape", [])
        return [_is_one(size, place) for size in shape]

    def view(self, name: str, place: Place) -> View:
        """The view of an array. Raises: NestError."""
        if name not in self._views:
            self._views[name] = self._create(name, place)
        return self._views[name]

    def alias(
        self, name: str, part: Callable[[Mapping[str, Any], Place], View], place: Place
    ) -> None:
        """Bind a view of DaCe to the result of `part` for its declaration, or to nothing if that
        refuses.

        Raises: NestError if it is no view.
        """
        kind, attributes = self._declaration(name)
        if "View" not in kind:
            raise NestError(f"{name} is no view")
        self._views.pop(name, None)
        with suppress(NestError):
            view = part(attributes, place)
            if _type_of(name, attributes) == place.registry.arrays[view.array].dtype:
                self._views[name] = view

    def _declaration(self, name: str) -> tuple[str, dict[str, Any]]:
        declaration = self._described.get(name)
        if not isinstance(declaration, dict) or not isinstance(declaration.get("attributes"), dict):
            raise NestError(f"there is no array {name[:40]!r}")
        return str(declaration.get("type")), declaration["attributes"]

    def _create(self, name: str, place: Place) -> View:
        kind, attributes = self._declaration(name)
        if kind not in _KINDS:
            overlaps = "View" in kind or "Reference" in kind
            why = ": arrays that overlap are not supported" if overlaps else ""
            raise NestError(f"{name} is of kind {kind[:40]}{why}")
        dtype = _type_of(name, attributes)
        transient = attributes.get("transient") is True
        shape = [] if kind == "Scalar" else _shape(name, attributes, place)
        if shape == [1] and transient:
            shape = []
        private = self._private if transient and shape else ()
        turns = [loop_range(private, place.registry.arrays, at) for at in range(len(private))]
        fill = "below:2" if attributes.get("dtype") == "bool" else ""
        array = Array(dtype, (*(high - low + 1 for low, high in turns), *shape), fill)
        number = place.registry.add(name, array, local=transient)
        view = View.whole(number, len(shape))
        own = tuple(
            (Index(Affine(-low, (*[0] * at, 1))), None) for at, (low, _) in enumerate(turns)
        )
        return replace(view, at=(*own, *view.at))


def _is_one(size: object, place: Place) -> bool:
    try:
        return constant(index_of(size, place)) == 1
    except NestError:
        return False


def _type_of(name: str, attributes: Mapping[str, Any]) -> str:
    written = str(attributes.get("dtype", _DEFAULT_TYPE))
    dtype = _TYPES.get(written)
    if dtype is None:
        raise NestError(f"{name} has elements of type {written[:40]}")
    return dtype


def _shape(name: str, attributes: Mapping[str, Any], place: Place) -> list[int]:
    sizes = [index_of(size, place) for size in attributes.get("shape", [])]
    shape = [index_range(place.loops, place.registry.arrays, size)[1] for size in sizes]
    if any(offset not in ("0", 0) for offset in (attributes.get("offset") or [])):
        raise NestError(f"{name} starts at an offset")
    if all(size.of is None and not size.affine.coefs for size in sizes):
        strides = [number_of(stride, place) for stride in attributes.get("strides") or []]
        if strides and strides != [prod(shape[at + 1 :]) for at in range(len(shape))]:
            raise NestError(f"{name} has strides {strides}, not those of rows in order")
    if not shape or min(shape) < 1:
        raise NestError(f"{name} has no elements")
    return shape
