"""Matrix files: one structure in every format and spelling that can hold it.

A form keeps the true entries; `_FORMATS` write them. A broken one says something of itself that is
not so (a count, an index beyond its sizes, a line that was lost) and has to be refused wherever the
format carries what gives it away.
"""

from __future__ import annotations

import gzip
import io
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

Entries = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Form:
    """`entries` ascend and count from 0; `half` is how symmetric ones are stored (lower, upper,
    both triangles) where the format has symmetric storage; choices that are left to the writer
    follow from `seed`."""

    shape: tuple[int, int]
    entries: Entries
    format: str = "mtx"
    half: str = ""
    values: str = "real"
    shuffled: bool = False
    twice: bool = False
    comments: bool = False
    blanks: bool = False
    crlf: bool = False
    mark: bool = False
    open_end: bool = False
    packed: bool = False
    name: str = "a"
    folder: str = ""
    ending: int = 0
    broken: str = ""
    seed: int = 0

    @property
    def symmetric(self) -> bool:
        return self.shape[0] == self.shape[1] and {(c, r) for r, c in self.entries} == set(
            self.entries
        )

    @property
    def hollow(self) -> bool:
        return all(r != c for r, c in self.entries)

    def used(self, axis: int) -> set[int]:
        """Rows (axis 0) or columns with entries."""
        return {entry[axis] for entry in self.entries}


def draw(rng: random.Random) -> Form:
    m = rng.randint(1, 9)
    n = rng.choice((m, m, rng.randint(1, 9)))
    kind = rng.choice(("general", "symmetric", "hollow")) if m == n else "general"
    density = rng.choice((0.1, 0.3, 0.8))
    cells = {(r, c) for r in range(m) for c in range(n) if rng.random() < density}
    if kind != "general":
        cells |= {(c, r) for r, c in cells}
    if kind == "hollow":
        cells = {(r, c) for r, c in cells if r != c}
    return Form((m, n), tuple(sorted(cells)), seed=rng.randrange(1 << 32))


def expected(form: Form) -> Any:
    if _shown(form):
        return None
    return {"shape": form.shape, "entries": form.entries, "name": form.name}


def read(form: Form, folder: Path) -> Any:
    from embeddb.core.pattern import Pattern
    from embeddb.matrix_files import read_pattern

    form = replace(form, broken=_shown(form))
    how = _FORMATS[_format(form)]
    ending = how.endings[form.ending % len(how.endings)]
    path = folder / form.folder / (form.name + ending + (".gz" if _packed(form) else ""))
    path.parent.mkdir(parents=True, exist_ok=True)
    data = how.write(form, random.Random(form.seed))
    path.write_bytes(gzip.compress(data) if _packed(form) else data)
    pattern = read_pattern(path)
    rows = np.repeat(np.arange(pattern.shape[0]), np.diff(pattern.indptr)).tolist()
    entries = tuple(zip(rows, pattern.indices.tolist(), strict=True))
    rebuilt = Pattern.from_coo(pattern.shape, *_columns(entries))
    assert rebuilt.id == pattern.id, "one structure has two ids"
    return {"shape": pattern.shape, "entries": entries, "name": pattern.name}


def _columns(entries: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [r for r, _ in entries], [c for _, c in entries]


# -- text ---------------------------------------------------------------------------------------


def _stored(form: Form, rng: random.Random, *, half: bool = False) -> list[tuple[int, int]]:
    """Entries in the order of the file, some of them twice."""
    entries = list(form.entries)
    if half and form.half == "lower":
        entries = [(r, c) for r, c in entries if r >= c]
    elif half and form.half == "upper":
        entries = [(r, c) for r, c in entries if r <= c]
    if form.twice and entries:
        entries += rng.choices(entries, k=2)
    if form.shuffled:
        rng.shuffle(entries)
    return entries


def _value(form: Form, rng: random.Random) -> str:
    if form.values == "pattern":
        return ""
    if form.values == "integer":
        return rng.choice(("0", "1", "-7", "+12", "99999999999999999999"))
    number = rng.choice(
        ("1.5", "-.5", "+1.5", "2.", "1e-3", "1E+300", "3.0D0", "-2.5d-01", "nan", "-inf", "0.0")
    )  # fmt: skip
    return f"{number} {rng.choice(('0', '-1.25'))}" if form.values == "complex" else number


def _text(form: Form, rng: random.Random, lines: list[str], *, comment: str, first: int) -> bytes:
    """Lines as bytes; comments only from line `first` on."""
    lines = list(lines)
    if form.comments and comment:
        for _ in range(rng.randint(1, 3)):
            words = rng.choice(("", " a comment", " 3 3", " name: x, y", " é"))
            lines.insert(rng.randint(first, len(lines)) if first >= 0 else -first, comment + words)
    text = "\n".join(lines) + ("" if form.open_end else "\n")
    text = text.replace("\n", "\r\n") if form.crlf else text
    return text.encode("utf-8-sig" if form.mark else "utf-8")


def _row(form: Form, rng: random.Random, *words: object, sep: str = " ") -> str:
    texts = [str(word) for word in words if word != ""]
    if not form.blanks:
        return sep.join(texts)
    ends = [" ", "", "\t"] if sep in " \t" else [""]
    wide = [" ", "  ", "\t", " \t "] if sep in " \t" else [sep, f"{sep} ", f" {sep}"]
    line = rng.choice(ends) + texts[0]
    return line + "".join(rng.choice(wide) + text for text in texts[1:]) + rng.choice(ends)


def _wrong(form: Form, entries: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The entries, one of them beyond the columns, or one of them lost."""
    if form.broken == "bounds":
        return [(entries[0][0], form.shape[1]), *entries[1:]]
    return entries[:-1] if form.broken == "cut" else entries


def _mtx(form: Form, rng: random.Random) -> bytes:
    half = form.symmetric and form.half != ""
    symmetry = "general"
    if half:
        names = ["symmetric"]
        names += ["skew-symmetric"] if form.hollow and form.values != "pattern" else []
        names += ["hermitian"] if form.values == "complex" else []
        symmetry = rng.choice(names)
    stored = _stored(form, rng, half=half)
    banner = f"%%MatrixMarket matrix coordinate {form.values} {symmetry}"
    banner = rng.choice((banner, banner.lower(), banner.replace(" ", "  ")))
    count = len(stored) + (form.broken == "count")
    lines = [banner]
    if form.comments:
        lines += rng.choices(("%", "% a comment", "%% 3 3 3", ""), k=3)
    lines.append(_row(form, rng, *form.shape, count))
    for r, c in _wrong(form, stored):
        lines.append(_row(form, rng, r + 1, c + 1, _value(form, rng)))
        if form.blanks and rng.random() < 0.1:
            lines.append("")
    return _text(form, rng, lines, comment="", first=0)


def _array(form: Form, rng: random.Random) -> bytes:
    m, n = form.shape
    there = set(form.entries)
    half = form.symmetric and form.half != ""
    lines = [f"%%MatrixMarket matrix array real {'symmetric' if half else 'general'}"]
    lines += ["% a comment"] * form.comments
    lines.append(f"{m} {n}")
    cells = [(r, c) for c in range(n) for r in range(c if half else 0, m)]
    values = [
        rng.choice(("1.5", "+2", "nan", "-1D0")) if cell in there else rng.choice(("0", "-0.0"))
        for cell in cells
    ]
    lines += values[:-1] if form.broken == "cut" else values
    lines += ["1"] if form.broken == "count" else []
    return _text(form, rng, lines, comment="", first=0)


def _hb(form: Form, rng: random.Random) -> bytes:
    half = form.symmetric and form.half in ("lower", "upper")
    stored = sorted(set(_stored(form, rng, half=half)), key=lambda entry: entry[::-1])
    stored = stored[:-1] if form.broken == "cut" else stored
    n, count = form.shape[1], len(stored) + (form.broken in ("count", "cut"))
    starts = np.cumsum([1, *(sum(c == col for _, c in stored) for col in range(n))]).tolist()
    if form.broken in ("count", "cut"):
        starts[-1] += 1
    indices = [r + 1 for r, _ in stored]
    if form.broken == "bounds":
        indices[0] = form.shape[0] + 1
    per_line, width = rng.randint(1, 9), rng.randint(4, 8)
    form_text, lead = rng.choice(
        ((f"({per_line}I{width})", 0), (f"(1X,{per_line}I{width})", 1),
         (f"({per_line}(I{width}))", 0), (f"(1P,{per_line}i{width})", 0),
         (f"( 2X, {per_line}I{width}.1)", 2))
    )  # fmt: skip
    cards = [
        [" " * lead + "".join(f"{v:{width}d}" for v in part[at : at + per_line])
         for at in range(0, len(part), per_line)]
        for part in (starts, indices)
    ]  # fmt: skip
    if form.blanks:
        cards[0].append("")
    code = rng.choice("PI") if form.values in ("pattern", "integer") else "R"
    code += ("S" if half else rng.choice("UR")) + "A"
    values = [] if code[0] == "P" else ["1.5"] * len(stored)
    counts = [len(cards[0]), len(cards[1]), len(values)]
    lines = [f"{'title':<72}KEY", "".join(f"{c:14d}" for c in (sum(counts), *counts, 0))]
    lines.append(f"{rng.choice((code, code.lower())):<14}" + "".join(
        f"{v:14d}" for v in (*form.shape, count, 0)))  # fmt: skip
    lines.append(f"{form_text:<16}{form_text:<16}{'(1E16.8)':<20}")
    return _text(form, rng, [*lines, *cards[0], *cards[1], *values], comment="", first=0)


def _smtx(form: Form, rng: random.Random) -> bytes:
    m, n = form.shape
    entries = list(form.entries)
    pointers = np.cumsum([0, *(sum(r == row for r, _ in entries) for row in range(m))]).tolist()
    indices = [c for _, c in _wrong(form, entries)]
    lines = [f"{m}, {n}, {len(entries) + (form.broken == 'count')}"]
    lines += [" ".join(map(str, pointers)), " ".join(map(str, indices))]
    return _text(form, rng, lines, comment="", first=0)


def _waco(form: Form, rng: random.Random) -> bytes:
    m, n = form.shape
    counts = [sum(r == row for r, _ in form.entries) for row in range(m)]
    indices = [c for _, c in _wrong(form, list(form.entries))]
    count = len(form.entries) + (form.broken == "count")
    return np.array([m, n, count, *np.cumsum([0, *counts]), *indices], "<i4").tobytes()


# -- graphs -------------------------------------------------------------------------------------


def _metis(form: Form, rng: random.Random) -> bytes:
    sizes, weighted, edges = (rng.random() < 0.3 for _ in range(3))
    constraints = rng.randint(1, 2) if weighted else 0
    entries = list(form.entries)
    fmt = f"{sizes:d}{weighted:d}{edges:d}"
    head: list[object] = [form.shape[0], len(entries) // 2 + (form.broken == "count")]
    head += [fmt] if fmt != "000" or form.blanks else []
    head += [constraints] if constraints > 1 else []
    lines = [_row(form, rng, *head)]
    stored = _stored(replace(form, twice=False), rng)
    for row in range(form.shape[0]):
        words: list[object] = rng.choices(range(9), k=sizes + constraints)
        for r, c in _wrong(form, stored) if form.broken != "cut" else form.entries[:-1]:
            words += [c + 1, rng.randint(1, 99)] if r == row and edges else []
            words += [c + 1] if r == row and not edges else []
        lines.append(_row(form, rng, *words) if words else "")
    return _text(form, rng, lines, comment="%", first=0)


def _hmetis(form: Form, rng: random.Random) -> bytes:
    m, n = form.shape
    edges, vertices = rng.random() < 0.3, rng.random() < 0.3
    fmt = f"{vertices:d}{edges:d}".lstrip("0")
    lines = [_row(form, rng, m + (form.broken == "count"), n, fmt)]
    stored = _wrong(form, _stored(form, rng)) if form.broken != "cut" else list(form.entries)
    for row in range(m):
        members = [c + 1 for r, c in stored if r == row]
        lines.append(_row(form, rng, *([rng.randint(1, 9)] * edges), *members))
    lines += [str(rng.randint(1, 9)) for _ in range(n)] * vertices
    return _text(form, rng, lines[: -1 if form.broken == "cut" else None], comment="%", first=0)


def _dimacs(form: Form, rng: random.Random) -> bytes:
    stored = _stored(form, rng)
    arcs = [f"a {r + 1} {c + 1} {rng.randint(0, 9)}" for r, c in _wrong(form, stored)]
    lines = [f"p sp {form.shape[0]} {len(stored) + (form.broken == 'count')}", *arcs]
    return _text(form, rng, lines, comment="c", first=0)


def _konect(form: Form, rng: random.Random) -> bytes:
    m, n = form.shape
    kind = "bip" if m != n or rng.random() < 0.4 else "asym"
    half = form.symmetric and form.half in ("lower", "upper") and kind == "asym"
    stored = _stored(form, rng, half=half)
    sizes = max(form.used(0)) < m - 1 or max(form.used(1)) < n - 1 or rng.random() < 0.5
    head = [f"% {'sym' if half else kind} {rng.choice(('unweighted', 'posweighted', 'positive'))}"]
    if sizes or form.broken:
        head.append(f"% {len(stored) + (form.broken == 'count')} {m} {n}")
    extra = rng.choice(((), (5,), (5, 1081036800)))
    rows = [_row(form, rng, r + 1, c + 1, *extra) for r, c in _wrong(form, stored)]
    return _text(form, rng, head + rows, comment="%", first=0)


def _edges(form: Form, rng: random.Random) -> bytes:
    n, base = form.shape[0], rng.randint(0, 1)
    stored = _stored(form, rng)
    sep = rng.choice((" ", "\t", ",", ";"))
    header = max(form.used(0) | form.used(1)) < n - 1 or rng.random() < 0.3
    extra = rng.choice(((), ("0.5",), ("1", "1999"), ("{'weight': 3}",), ("a long road",)))
    named = rng.random() < 0.3 or _like_sizes([(r + base, c + base) for r, c in stored], extra)
    lines = []
    if header or form.broken:
        edges = len(stored) + (form.broken == "count")
        lines.append(
            rng.choice(("# Nodes: {} Edges: {}", "#Nodes:\t{}\tEdges:\t{}")).format(n, edges)
        )
    if named:
        lines.append(sep.join(rng.choice((("source", "target"), ("Src", "Dst"), ("u", "v")))))
    lines += [_row(form, rng, r + base, c + base, *extra, sep=sep) for r, c in _wrong(form, stored)]
    return _text(form, rng, lines, comment=rng.choice("#%"), first=0)


def _like_sizes(stored: list[tuple[int, int]], extra: tuple[str, ...]) -> bool:
    """Whether the first edge may be the number of vertices and edges, which is refused."""
    (r, c), rest = stored[0], stored[1:]
    return bool(rest) and (len(rest) in (r, c, 2 * c) or extra == ("1", "1999"))


# -- containers ---------------------------------------------------------------------------------


def _sparse(form: Form) -> Any:
    import scipy.sparse as sp

    rows, cols = _columns(form.entries)
    ones = np.ones(len(rows)), (rows, cols)
    return sp.coo_array(ones, shape=form.shape)


def _npz(form: Form, rng: random.Random) -> bytes:
    import scipy.sparse as sp

    out, matrix = io.BytesIO(), _sparse(form)
    layout = rng.choice(("csr", "csc", "coo", "bsr", "dia")) if not form.broken else "csr"
    made = matrix.asformat(layout)
    if layout not in ("csr", "csc") or rng.random() < 0.3:
        sp.save_npz(out, made, compressed=rng.random() < 0.5)
        if not form.broken:
            return out.getvalue()
        out = io.BytesIO()
    index = rng.choice((np.int32, np.int64))
    tail = rng.choice((0, 0, 3)) if min(form.shape) else 0
    indices = np.concatenate([made.indices, np.zeros(tail)]).astype(index)
    if form.broken == "bounds":
        indices[0] = form.shape[1]
    pointers = made.indptr.astype(index)
    if form.broken == "count":
        pointers[-1] += tail + 1
    arrays = {"indptr": pointers, "indices": indices, "data": np.zeros(indices.size)}
    if layout == "csr" and rng.random() < 0.3:
        np.savez(out, **{f"adj_{k}": v for k, v in arrays.items()}, adj_shape=form.shape)
    else:
        kind = rng.choice((layout, layout.encode()))
        np.savez(out, format=kind, shape=form.shape, **arrays)
    return out.getvalue()


def _mat(form: Form, rng: random.Random) -> bytes:
    import scipy.io
    import scipy.sparse as sp

    out, matrix = io.BytesIO(), sp.csc_matrix(_sparse(form))
    body = rng.choice(({"A": matrix, "b": 3.0}, {"Problem": {"title": "t", "A": matrix}}))
    scipy.io.savemat(out, body, do_compression=rng.random() < 0.5)
    return out.getvalue()


@dataclass(frozen=True)
class _How:
    """`fits`: whether a format can hold the structure; `shows`: ways of being broken that the
    format gives away."""

    write: Callable[[Form, random.Random], bytes]
    endings: tuple[str, ...]
    fits: Callable[[Form], bool] = lambda form: True
    shows: tuple[str, ...] = ("bounds", "count", "cut")
    packs: bool = True


def _square(form: Form) -> bool:
    return form.shape[0] == form.shape[1]


_FORMATS = {
    "mtx": _How(_mtx, (".mtx", ".MTX", ".mm", ".txt", ".dat", "")),
    "array": _How(_array, (".mtx", ".txt"), shows=("count", "cut")),
    "hb": _How(_hb, (".hb", ".rb", ".rua", ".dat", "")),
    "smtx": _How(_smtx, (".smtx",)),
    "waco": _How(_waco, (".csr",)),
    "metis": _How(_metis, (".graph",), lambda form: form.symmetric and form.hollow),
    "hmetis": _How(_hmetis, (".hgr",), lambda form: len(form.used(0)) == form.shape[0]),
    "dimacs": _How(_dimacs, (".gr", ".txt", ""), _square),
    "konect": _How(_konect, (".edges", ".txt", ""), lambda form: bool(form.entries)),
    "edges": _How(
        _edges, (".edges", ".el", ".edgelist", ".txt", ".csv", ".tsv", ""),
        lambda form: _square(form) and bool((form.used(0) | form.used(1)) & {0}),
        shows=("count", "cut"),
    ),
    "npz": _How(_npz, (".npz", ""), shows=("bounds", "count"), packs=False),
    "mat": _How(_mat, (".mat", ""), shows=()),
}  # fmt: skip


def _format(form: Form) -> str:
    """The format of a form; one that cannot hold it gives way to Matrix Market."""
    return form.format if _FORMATS[form.format].fits(form) else "mtx"


def _packed(form: Form) -> bool:
    return form.packed and _FORMATS[_format(form)].packs


def _shown(form: Form) -> str:
    """The way of being broken, if the format of the form gives it away."""
    shows = _FORMATS[_format(form)].shows
    return form.broken if form.entries and form.broken in shows else ""


# -- changes ------------------------------------------------------------------------------------

Made = Callable[[random.Random, Form], Form]


def _set(**choices: Sequence[Any]) -> Made:
    """A change of fields, each to one of its values, and of what is left to the writer."""

    def change(rng: random.Random, form: Form) -> Form:
        chosen = {name: rng.choice(list(values)) for name, values in choices.items()}
        return replace(form, seed=rng.randrange(1 << 32), **chosen)

    return change


KEEPS: dict[str, Made] = {
    "format": _set(format=sorted(_FORMATS)),
    "another format": _set(format=sorted(_FORMATS)),
    "symmetric storage": _set(half=("lower", "upper", "both")),
    "values": _set(values=("real", "integer", "pattern", "complex")),
    "order of entries": _set(shuffled=(True,)),
    "entries twice": _set(twice=(True,)),
    "comments": _set(comments=(True,)),
    "blanks": _set(blanks=(True,)),
    "line ends": _set(crlf=(True,)),
    "byte-order mark": _set(mark=(True,)),
    "no last line end": _set(open_end=(True,)),
    "gzip": _set(packed=(True,)),
    "name": _set(name=("G.43", "web graph", "größe", "x_b"), folder=("", "HB", "a b/c.d")),
    "ending": _set(ending=range(7)),
}


def _lost(rng: random.Random, form: Form) -> Form:
    if not form.entries:
        return form
    gone = rng.choice(form.entries)
    return replace(form, entries=tuple(e for e in form.entries if e != gone))


def _moved(rng: random.Random, form: Form) -> Form:
    there = set(_lost(rng, form).entries)
    there.add((rng.randrange(form.shape[0]), rng.randrange(form.shape[1])))
    return replace(form, entries=tuple(sorted(there)))


def _transposed(rng: random.Random, form: Form) -> Form:
    entries = tuple(sorted((c, r) for r, c in form.entries))
    return replace(form, shape=form.shape[::-1], entries=entries)


def _grown(rng: random.Random, form: Form) -> Form:
    m, n = form.shape
    return replace(form, shape=rng.choice(((m + 1, n), (m, n + 1), (m + 1, n + 1))))


def _break(how: str) -> Made:
    def change(rng: random.Random, form: Form) -> Form:
        where = [
            name for name, f in _FORMATS.items()
            if how in f.shows and f.fits(form) and form.entries
        ]  # fmt: skip
        return replace(form, format=rng.choice(where), broken=how) if where else form

    return change


ALTERS: dict[str, Made] = {
    "entry lost": _lost,
    "entry moved": _moved,
    "transposed": _transposed,
    "rows or columns more": _grown,
    "count wrong": _break("count"),
    "index beyond the sizes": _break("bounds"),
    "line lost": _break("cut"),
}
