"""The arrays that an `.sdfg` file declares, made when they are first met: sizes may depend on loops
around, and what a nested program keeps for itself exists once for every turn of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import Any

from embeddb.core.errors import NestError
from embeddb.nests.nest import index_range, loop_range
from embeddb.nests.parts import Affine, Array, Index, Loop
from indexer.frontends.dace.data import View
from indexer.frontends.dace.place import Place
from indexer.frontends.dace.symbolic import index_of, number_of
from indexer.frontends.indices import constant

_TYPES = {
    **{"float32": "f32", "float": "f32", "float64": "f64", "double": "f64"},
    **{"int32": "i32", "int": "i32", "uint32": "i32", "int64": "i64", "uint64": "i64"},
    "bool": "i32",
}
_KINDS = ("Array", "Scalar")
#: DaCe leaves out of a file what is as by default.
_DEFAULT_TYPE = "int32"


class Containers:
    """The arrays of one program. `described`: its declarations; `handed`: those that the program
    around gives; `private`: the loops around a nested program."""

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
        """Of every dimension as declared, whether it is known to have one element.

        Raises: NestError for an array that is not there.
        """
        kind, told = self._told(name)
        shape = [] if kind == "Scalar" else told.get("shape", [])
        return [_is_one(size, place) for size in shape]

    def view(self, name: str, place: Place) -> View:
        """Raises: NestError."""
        if name not in self._views:
            self._views[name] = self._made(name, place)
        return self._views[name]

    def alias(
        self, name: str, part: Callable[[Mapping[str, Any], Place], View], place: Place
    ) -> None:
        """A view of DaCe is from here on what `part` makes of its declaration, or nothing where it
        refuses that.

        Raises: NestError for what is no view.
        """
        kind, told = self._told(name)
        if "View" not in kind:
            raise NestError(f"{name} is no view")
        self._views.pop(name, None)
        with suppress(NestError):
            view = part(told, place)
            if _type_of(name, told) == place.registry.arrays[view.array].dtype:
                self._views[name] = view

    def _told(self, name: str) -> tuple[str, dict[str, Any]]:
        told = self._described.get(name)
        if not isinstance(told, dict) or not isinstance(told.get("attributes"), dict):
            raise NestError(f"there is no array {name[:40]!r}")
        return str(told.get("type")), told["attributes"]

    def _made(self, name: str, place: Place) -> View:
        kind, told = self._told(name)
        if kind not in _KINDS:
            overlaps = "View" in kind or "Reference" in kind
            why = ": arrays that overlap are not known here" if overlaps else ""
            raise NestError(f"{name} is of kind {kind[:40]}{why}")
        dtype = _type_of(name, told)
        transient = told.get("transient") is True
        shape = [] if kind == "Scalar" else _shape(name, told, place)
        if shape == [1] and transient:
            shape = []
        private = self._private if transient and shape else ()
        turns = [loop_range(private, place.registry.arrays, at) for at in range(len(private))]
        fill = "below:2" if told.get("dtype") == "bool" else ""
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


def _type_of(name: str, told: Mapping[str, Any]) -> str:
    written = str(told.get("dtype", _DEFAULT_TYPE))
    dtype = _TYPES.get(written)
    if dtype is None:
        raise NestError(f"{name} has elements of type {written[:40]}")
    return dtype


def _shape(name: str, told: Mapping[str, Any], place: Place) -> list[int]:
    sizes = [index_of(size, place) for size in told.get("shape", [])]
    shape = [index_range(place.loops, place.registry.arrays, size)[1] for size in sizes]
    if any(offset not in ("0", 0) for offset in (told.get("offset") or [])):
        raise NestError(f"{name} starts at an offset")
    if all(size.of is None and not size.affine.coefs for size in sizes):
        strides = [number_of(stride, place) for stride in told.get("strides") or []]
        if strides and strides != [prod(shape[at + 1 :]) for at in range(len(shape))]:
            raise NestError(f"{name} has strides {strides}, not those of rows in order")
    if not shape or min(shape) < 1:
        raise NestError(f"{name} has no elements")
    return shape
