"""Graphs and hypergraphs: METIS, hMETIS, KONECT, DIMACS, SNAP and plain edge lists.

The right entries are written by hand; what has no certain meaning is refused with its line.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddb.core.errors import MatrixError
from embeddb.core.pattern import Pattern
from embeddb.matrix_files import read_pattern, sniff

#: The graph of METIS's manual without some edges: 1-2, 1-3, 2-3, 3-5; vertex 4 is isolated.
HOUSE = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1), (2, 4), (4, 2)]
TRIANGLE = [(0, 1), (1, 2), (2, 0)]


def pattern(shape: tuple[int, int], entries: list[tuple[int, int]]) -> Pattern:
    rows, cols = zip(*entries, strict=True) if entries else ((), ())
    return Pattern.from_coo(shape, list(rows), list(cols))


def read(folder: Path, name: str, text: str) -> Pattern:
    path = folder / name
    path.write_bytes(text.encode())
    return read_pattern(path)


@pytest.mark.parametrize(
    "text",
    [
        "5 4\n2 3\n1 3\n1 2 5\n\n3\n",
        "% a comment\n5 4\n2 3\n% another\n1 3\n1 2 5\n\n3\n\n\n",
        "5 4\r\n 2\t3\r\n1 3\r\n5 1 2\r\n\r\n3",
        "5 4 0\n2 3\n1 3\n1 2 5\n\n3\n",
        "5 4 001\n2 7 3 1\n1 7 3 9\n1 1 2 9 5 2\n\n3 2\n",
        "5 4 1\n2 7 3 1\n1 7 3 9\n1 1 2 9 5 2\n\n3 2\n",
        "5 4 10\n9 2 3\n9 1 3\n9 1 2 5\n9\n9 3\n",
        "5 4 010 1\n9 2 3\n9 1 3\n9 1 2 5\n9\n9 3\n",
        "5 4 11\n9 2 7 3 1\n9 1 7 3 9\n9 1 1 2 9 5 2\n9\n9 3 2\n",
        "5 4 011 2\n8 9 2 7 3 1\n8 9 1 7 3 9\n8 9 1 1 2 9 5 2\n8 9\n8 9 3 2\n",
        "5 4 100\n6 2 3\n6 1 3\n6 1 2 5\n6\n6 3\n",
        "5 4 111 2\n6 8 9 2 7 3 1\n6 8 9 1 7 3 9\n6 8 9 1 1 2 9 5 2\n6 8 9\n6 8 9 3 2\n",
    ],
)
def test_metis_graphs_of_every_fmt(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, "a.graph", text) == pattern((5, 5), HOUSE)
    assert sniff(tmp_path / "a.graph") == "metis"


def test_a_metis_graph_whose_last_vertices_have_no_line(tmp_path: Path) -> None:
    assert read(tmp_path, "a.graph", "4 1\n2\n1\n") == pattern((4, 4), [(0, 1), (1, 0)])
    assert read(tmp_path, "a.graph", "3 0\n") == pattern((3, 3), [])


@pytest.mark.parametrize(
    "text",
    ["4 7\n1 2\n1 7 5 6\n5 6 4\n2 3 4\n", "4 7 1\n2 1 2\n3 1 7 5 6\n8 5 6 4\n7 2 3 4\n",
     "% c\n4 7 10\n1 2\n1 7 5 6\n5 6 4\n% d\n2 3 4\n5\n1\n8\n7\n3\n9\n3\n",
     "4 7 11\n2 1 2\n3 1 7 5 6\n8 5 6 4\n7 2 3 4\n5\n1\n8\n7\n3\n9\n3\n\n"],
)  # fmt: skip
def test_hmetis_hypergraphs_are_incidence_matrices(tmp_path: Path, text: str) -> None:
    want = [(0, 0), (0, 1), (1, 0), (1, 4), (1, 5), (1, 6), (2, 3), (2, 4), (2, 5), (3, 1), (3, 2)]
    assert read(tmp_path, "a.hgr", text) == pattern((4, 7), [*want, (3, 3)])


BIPARTITE = [(0, 0), (0, 1), (1, 1), (2, 0), (2, 2), (3, 2)]
BODY = "1 1 5 1081\n1 2 3 1082\n2 2 4 1083\n3 1 1 1084\n3 3 2 1085\n4 3 5 1086\n"


@pytest.mark.parametrize(
    ("head", "shape"),
    [
        ("% bip posweighted\n", (4, 3)),
        ("% bip posweighted\n% 6 4 3\n", (4, 3)),
        ("%bip\tposweighted \r\n% 6 7 9\r\n", (7, 9)),
        ("% taken from a site\n% bip weighted\n% 6 4 5\n", (4, 5)),
        ("\ufeff% bip weighted\n% 6 4 5\n", (4, 5)),
    ],
)
@pytest.mark.parametrize("name", ["out.votes", "votes.edges", "votes.txt"])
def test_bipartite_konect(tmp_path: Path, head: str, shape: tuple[int, int], name: str) -> None:
    assert read(tmp_path, name, head + BODY) == pattern(shape, BIPARTITE)


def test_konect_of_one_kind_of_vertex(tmp_path: Path) -> None:
    body = "1 2\n2 3\n3 1\n"
    assert read(tmp_path, "out.a", "% asym unweighted\n% 3 5 5\n" + body) == pattern(
        (5, 5), TRIANGLE
    )
    both = TRIANGLE + [(j, i) for i, j in TRIANGLE]
    assert read(tmp_path, "out.a", "% sym unweighted\n" + body) == pattern((3, 3), both)
    # Ids count from 1, whether vertex 1 has an edge or not.
    assert read(tmp_path, "out.a", "% asym positive\n2 3\n3 2\n") == pattern(
        (3, 3), [(1, 2), (2, 1)]
    )


def test_dimacs_shortest_path_graphs(tmp_path: Path) -> None:
    text = "c small road\np sp 4 5\na 1 2 7\na 2 1 7\nc\na 2 3 4\na 3 4 1\na 4 1 9\n"
    want = pattern((4, 4), [(0, 1), (1, 0), (1, 2), (2, 3), (3, 0)])
    for name in ("road.gr", "road.txt"):
        assert read(tmp_path, name, text) == want
        assert read(tmp_path, name, text.replace("\n", "\r\n")) == want
    assert read(tmp_path, "road.gr", "p sp 3 1\na 1 2 0") == pattern((3, 3), [(0, 1)])


@pytest.mark.parametrize(
    ("text", "shape", "entries"),
    [
        ("# Nodes: 9 Edges: 2\n0\t1\n5\t2\n", (9, 9), [(0, 1), (5, 2)]),
        ("# Nodes: 6 Edges: 2\n0\t1\n5\t2\n", (6, 6), [(0, 1), (5, 2)]),
        # SNAP counts the ids that occur; there are holes between them.
        ("# Nodes: 4 Edges: 2\n0\t1\n5\t2\n", (6, 6), [(0, 1), (5, 2)]),
        ("# Nodes: 12 Edges: 3\n1\t2\n2\t3\n3\t1\n", (12, 12), TRIANGLE),
        ("#Nodes:\t5\tEdges:\t2\r\n2 3\r\n3 5\r\n", (5, 5), [(1, 2), (2, 4)]),
        ("# Nodes: 4000 Edges: 1\n3000 1\n", (4000, 4000), [(2999, 0)]),
        ("# Nodes: 1,005 Edges: 2\n0\t1\n5\t2\n", (1005, 1005), [(0, 1), (5, 2)]),
        ("# Nodes: 1.004.005 Edges: 1\n3 0\n", (1004005, 1004005), [(3, 0)]),
        ("# Nodes: 5 Edges: 2\n90000000000 7\n7 500000\n", (5, 5), [(2, 0), (0, 1)]),
        ("source,target,weight\n0,1,1.5\n1,2,\n2,0,3\n", (3, 3), TRIANGLE),
        ('"Source";"Target"\n0;1\n1;2\n2;0\n', (3, 3), TRIANGLE),
        ("# c\nFromNodeId ToNodeId\n0 1\n1 2\n2 0\n", (3, 3), TRIANGLE),
        ("0;1;0,5\n1;2;1\n2;0;1,25\n", (3, 3), TRIANGLE),
        ('0 1 {}\n1 2 {"weight": 3, "t": 1}\n2 0 {}\n', (3, 3), TRIANGLE),
        ("0 1 a road\n1 2 a long road\n2 0 bridge\n", (3, 3), TRIANGLE),
        ("\ufeff0 1\n1 2\n2 0\n", (3, 3), TRIANGLE),
        # A first edge that is not the sizes of the others.
        ("5 6\n0 1\n1 2\n", (7, 7), [(5, 6), (0, 1), (1, 2)]),
        ("1 2\n2 1\n", (2, 2), [(0, 1), (1, 0)]),
    ],
)
def test_edge_lists_with_headers_and_separators(
    tmp_path: Path, text: str, shape: tuple[int, int], entries: list[tuple[int, int]]
) -> None:
    assert read(tmp_path, "a.csv", text) == pattern(shape, entries)


def test_a_header_row_may_end_behind_the_part_in_which_it_is_looked_for(tmp_path: Path) -> None:
    text = f"# {'x' * 65_526}\nFromNodeId ToNodeId\n0 1\n1 2\n2 0\n"
    assert read(tmp_path, "a.el", text) == pattern((3, 3), TRIANGLE)


REFUSED = [
    ("a.graph", "4 5\n2\n1\n", 1),  # fewer entries than two for each edge
    ("a.graph", "2 1\n2\n1\n3\n", 4),  # more lines than vertices
    ("a.graph", "2 1\n2\n\n", 1),
    ("a.graph", "3 2\n2\n1 3\n1\n", 4),  # 3 names 1, which does not name 3
    ("a.graph", "2 1\n3\n1\n", 2),
    ("a.graph", "2 1\n0\n1\n", 2),
    ("a.graph", "2 1 001\n2\n1 4\n", 2),
    ("a.graph", "2 1 002\n2\n1\n", 1),
    ("a.graph", "2 1 0 2\n2\n1\n", 1),
    ("a.graph", "2 1 10\n5 2\n\n", 3),
    ("a.graph", "2 1 10\n5 2\n", None),
    ("a.graph", "2 1\n2 # c\n1\n", 2),
    ("a.graph", "2 1\n% c\n2.5\n1\n", 3),
    ("a.graph", "0 1\n1 2\n2 0\n", 2),  # an edge list
    ("a.graph", "3000000000 1\n2\n1\n", 1),
    ("a.graph", "3 99999999999999999999\n2\n1\n", 1),
    ("a.graph", "", 1),
    ("a.hgr", "2 3\n1 2\n", None),
    ("a.hgr", "2 3\n\n1 2\n", 2),
    ("a.hgr", "1 3\n1 2\n3\n", 3),
    ("a.hgr", "1 3\n1 4\n", 2),
    ("a.hgr", "1 2 10\n1 2\n4\n5 6\n", 4),
    ("a.hgr", "1 2 100\n1 2\n", 1),
    ("a.hgr", "1\n1 2\n", 1),
    ("out.a", "% bip unweighted\n% 2 2 2\n1 1\n2 3\n", 4),
    ("out.a", "% bip unweighted\n0 1\n1 2\n", 2),
    ("out.a", "% bip unweighted\n% 3 2 2\n1 1\n2 2\n", None),
    ("out.a", "% asym unweighted\n% 2 2 2\n1 2\n2 3\n", None),
    ("out.a", "% sym dynamic\n1 2 1 8\n1 2 -1 9\n", None),
    ("a.gr", "p sp 3 2\na 1 2 3\n", 1),
    ("a.gr", "c\np sp 3 1\na 1 4 3\n", 3),
    ("a.gr", "p sp 3 1\na 0 1 3\n", 2),
    ("a.gr", "p sp 3 1\n1 2 3\na 1 2 3\n", 1),
    ("a.gr", "p tw 3 1\n1 2\n", 1),
    ("a.gr", "1 2\n2 3\n", None),
    ("a.el", "# c\n5 6\n0 1\n0 2\n1 3\n2 4\n3 4\n4 0\n", 2),  # vertices, edges
    ("a.el", "5 3\n0 1\n1 0\n1 3\n3 1\n4 0\n0 4\n", 1),  # each edge twice
    ("a.el", "3 5\n1 2\n2 3\n4 5\n", 1),  # hyperedges, vertices
    ("a.el", "3 3 4\n1 1 5\n2 2 5\n3 1 5\n3 3 5\n", 1),  # rows, columns, entries
    ("a.el", "3,3,4\n1,1,5\n2,2,5\n3,1,5\n3,3,5\n", 1),
    ("a.el", "3\n0 1\n1 2\n2 0\n", 1),
    ("a.txt", "5 4\n2 3\n1 3\n1 2 5\n3 3\n3 2\n", 4),  # METIS
    ("a.txt", "0 1 2\n# c\n1 2\n2 3 4 5\n", 3),  # an adjacency list
    ("a.txt", "0 1 2 3 4\n1 0 2 3 4\n2 0 1 3 4\n", 1),
    ("a.txt", "# Nodes: 3 Edges: 2\n0 1\n2 3\n", None),
    ("a.txt", "1.0 2.0\n2.0 3.0\n", 1),
    ("a.txt", "AdjacencyGraph\n3\n4\n0\n2\n3\n1\n2\n0\n1\n", 1),
    ("a.txt", "1 1:0.5 3:1.0\n0 2:1 4:0.25\n", 1),
    ("a.svm", "+1 1:0.5 3:1.0\n-1 2:1 4:0.25\n", 1),
    ("a.csv", "# c\nsource,weight,target\n0,5,1\n", 2),
    ("a.csv", "user,item\n0,5\n", 1),
]


@pytest.mark.parametrize(("name", "text", "line"), REFUSED)
def test_what_is_no_such_graph_is_refused_with_its_line(
    tmp_path: Path, name: str, text: str, line: int | None
) -> None:
    with pytest.raises(MatrixError) as caught:
        read(tmp_path, name, text)
    assert caught.value.line == line
    place = f"{tmp_path / name}:{line}: " if line is not None else f"{tmp_path / name}: "
    assert str(caught.value).startswith(place)


def test_a_promise_of_many_vertices_allocates_nothing(tmp_path: Path) -> None:
    many = 2_000_000_000
    for name, text in (
        ("a.graph", f"{many} 1\n2\n1\n"),
        ("a.hgr", f"{many} 2\n1 2\n"),
        ("a.gr", f"p sp {many} 1\na 1 2 3\n"),
        ("a.edges", f"# Nodes: {many} Edges: 1\n1 2\n"),
        ("a.edges", f"% bip unweighted\n% 1 {many} 2\n1 2\n"),
    ):
        with pytest.raises(MatrixError):
            read(tmp_path, name, text)
