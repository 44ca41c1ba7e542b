"""The columns of TpuGraphs' node features (its README, "Node Features"), read by name."""

from __future__ import annotations

from collections.abc import Sequence

from embeddb.core.errors import TensorError
from embeddb.tensors.computation import Shape

COLUMNS = 140
#: Entries of a list that are told.
MOST = 6
#: Of columns 2 to 20; tuples, opaque values and tokens have no elements.
_TYPES = (
    *("", "pred", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64"),
    *("f16", "f32", "f64", "bf16", "c64", "c128", "token", "token", "token"),
)
#: First column and number of entries of each list.
_LISTS = {
    "shape": (21, 6),
    "dimensions": (31, 6),
    "size": (37, 6),
    "stride": (45, 6),
    "low": (53, 6),
    "high": (61, 6),
    "rhs_dilate": (69, 6),
    "lhs_dilate": (77, 6),
    "reversal": (85, 6),
    "input_ends": (93, 2),
    "input_spatial": (95, 4),
    "kernel_ends": (99, 2),
    "kernel_spatial": (101, 4),
    "output_ends": (105, 2),
    "groups": (107, 2),
    "slice_start": (109, 2),
    "slice_stride": (113, 2),
    "slice_limit": (117, 2),
    "pad_low": (125, 2),
    "pad_high": (129, 2),
    "layout": (134, 6),
}
_SHAPE_SUM = 27


class Row:
    """One operation. Raises: TensorError where a number is asked for that is not whole."""

    def __init__(self, at: int, line: Sequence[float]) -> None:
        self.at, self._line = at, line

    @property
    def is_root(self) -> bool:
        return self._line[0] == 1

    def numbers(self, name: str, count: int) -> tuple[int, ...]:
        """The first entries of a list, 0 where there is none."""
        start, length = _LISTS[name]
        return tuple(self._whole(start + at) for at in range(min(count, length)))

    def told(self, name: str) -> int:
        """How many entries of a list are not 0, from its beginning."""
        start, length = _LISTS[name]
        places = range(start, start + length)
        return next((at - start for at in places if not self._line[at]), length)

    def shape(self) -> Shape | None:
        """None of a tuple and of what else has no elements."""
        types = [at for at in range(len(_TYPES)) if self._line[2 + at] == 1]
        if len(types) != 1 or not _TYPES[types[0]]:
            raise TensorError(f"operation {self.at}: has no type of elements")
        dtype = _TYPES[types[0]]
        if dtype == "token":
            return None
        rank = self.told("shape")
        dims = self.numbers("shape", rank)
        if min(dims, default=1) < 1 or abs(self._line[_SHAPE_SUM] - sum(dims)) > 1e-3 * sum(dims):
            raise TensorError(f"operation {self.at}: {dims} are no sizes, or not all of them")
        layout = self.numbers("layout", rank)
        return Shape(dtype, dims, layout if any(layout) else ())

    def _whole(self, column: int) -> int:
        found = self._line[column]
        if not found.is_integer() or abs(found) > 2**53:  # also of nan and infinities
            raise TensorError(f"operation {self.at}: column {column} holds {found}")
        return int(found)
