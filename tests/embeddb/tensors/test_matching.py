"""Tiles transferred by the role of each dimension."""

from __future__ import annotations

from dataclasses import replace

from tensors import conv, dot_add, op, row_sum

from embeddb.core.config import Config
from embeddb.tensors.check import computation
from embeddb.tensors.tensor_graph import Shape, TensorGraph
from embeddb.tensors.tiles import transferred_sizes, transferred_tile


def unary(*dims: int, layout: tuple[int, ...] = ()) -> TensorGraph:
    first = op("parameter", dims, number=0)
    shape = (Shape("f32", dims, layout),)
    return computation(
        [replace(first, results=shape), replace(op("negate", dims, 0), results=shape)], [1]
    )


def test_columns_are_columns() -> None:
    made = transferred_tile(
        Config({"t1": 8, "t2": 32, "tr": 16}), dot_add(64, 128, 64), unary(4, 50, 60)
    )
    # Nothing is matched with the batch: it stays as large as the tile was.
    assert made == Config({"t1": 1, "t2": 8, "t3": 32, "tr": 0})
    back = transferred_tile(made, unary(4, 50, 60), dot_add(64, 128, 64))
    assert back == Config({"t1": 8, "t2": 32, "tr": 0})


def test_the_order_in_memory_decides() -> None:
    """Column-major: what lies closest in memory is the first."""
    turned = unary(50, 60, layout=(0, 1))
    tile = Config({"t1": 8, "t2": 32, "tr": 0})
    assert transferred_tile(tile, unary(64, 64), turned) == Config({"t1": 32, "t2": 8, "tr": 0})


def test_what_is_as_long_as_its_dimension_is_the_whole() -> None:
    source, target = unary(4096, 4096), dot_add(64, 128, 32)
    found = list(transferred_sizes(Config({"t1": 64, "t2": 512, "tr": 128}), source, target))
    assert [one.size for one in found] == [0, 0, 0]
    assert all("covers the dimension" in one.reason for one in found)
    whole = Config({"t1": 0, "t2": 0, "tr": 0})
    assert transferred_tile(whole, source, conv(2, 20)) == Config(
        {"t1": 0, "t2": 0, "t3": 0, "t4": 0, "tr": 0}
    )


def test_every_pair_gives_all_parameters() -> None:
    some = [unary(), unary(7), row_sum(), dot_add(), conv(2, 20), unary(2, 3, 4, 5, 6, 7, 8)]
    for source in some:
        tile = Config({f"t{at + 1}": 2 for at in range(source.sizes.symbols["RANK"])} | {"tr": 2})
        for target in some:
            made = transferred_tile(tile, source, target)
            rank = target.sizes.symbols["RANK"]
            assert set(made) == {*(f"t{at + 1}" for at in range(rank)), "tr"}
            assert all(int(v) >= 0 for v in made.values())
            roles = [one.role for one in transferred_sizes(tile, source, target)]
            assert roles.count("columns") == 1 and roles[-1] == "sums"
