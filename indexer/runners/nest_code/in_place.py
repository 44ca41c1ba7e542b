"""A nest's schedule as C: a file that compiles and runs alone, as written by `query --emit`, or the
user's own C file with its scops replaced, which compiles in place of the file.

Functions of the nests stand above the file's own text, where none of its macros reach; `#line`
keeps its line numbers. Each scop becomes calls of its nests, guarded by the sizes and values that
they were read for, and by checks of row offsets that must ascend and of bounds that blocks and
copies rest on; for others the original loops run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from embeddb.kernels import build as cpu_build
from embeddb.kernels.emitter import INCLUDES, TOOLS, timed
from embeddb.kernels.nests.expressions import (
    C_TYPES,
    HELPERS,
    Site,
    Writer,
    function_name,
    math_called,
    names_of,
)
from embeddb.kernels.nests.generate import PLAIN_PRELUDE, PRELUDE, c_function
from embeddb.nests.dependence.distances import Distances
from embeddb.nests.dependence.legality import needs_ascending
from embeddb.nests.nest import Nest, ending_at_last, index_range, values_of
from embeddb.nests.parts import DTYPES
from embeddb.nests.schedule import Schedule
from indexer.frontends.c.scop import CFile, Scop
from indexer.frontends.c.variables import AroundScop, declared_by, outer_indices, set_outside
from indexer.runners.nest_code import fill

#: Around generated functions, instead of the option for the whole program: there a test for NaN may
#: stand. Before math.h, which declares vector functions for -ffast-math alone.
_FAST = """\
#pragma GCC push_options
#pragma GCC optimize("O3", "fast-math")"""
_FAST_END = "#pragma GCC pop_options"
_NUMBERS = "In these loops NaN and infinities are not supported."


def _flags() -> str:
    """Options of the compiler for a file whose functions stand in `_FAST`."""
    march = cpu_build.flags()[1]
    x86 = "on x86 with -mno-recip (clang: -mrecip=none)"
    return f"-O3 {march} -fno-math-errno -fopenmp -std=gnu11, {x86}"


_MAIN = """\
int main(void)
{{
{body}
    return 0;
}}
"""


def c_program(nest: Nest, schedule: Schedule) -> str:
    """The function, and a main that fills the arrays, calls it, and prints the sum of each array
    that it wrote and the median of the seconds of further calls, before each of which the arrays
    are reset.

    Raises: NestError for a schedule without code.
    """
    name = function_name(nest)
    lines = [
        "/* Written by embeddb: one loop nest, scheduled.",
        "",
        *(f"       {line}" for line in nest_lines(nest)),
        "",
        f"   Schedule: {schedule.config}",
        f"   Compile:  gcc FILE.c -lm {_flags()}",
        f"   {_NUMBERS}",
        "   The numbers that it starts from are made up; no two pointers may overlap. */",
        *(
            f"/* It has rows like those of matrix {name}. */"
            for name in sorted({*nest.matrix_ids.values()})
        ),
        *(f"#include <{header}>" for header in INCLUDES),
    ]
    function = c_function(nest, schedule, name)
    body = "\n".join(f"    {line}" if line else "" for line in _main(nest, name))
    return "\n".join(
        [
            *(*lines, _FAST, PRELUDE, function, _FAST_END),
            *(fill.FILL_FUNCTIONS, TOOLS, _MAIN.format(body=body)),
        ]
    )


def nest_lines(nest: Nest) -> Iterator[str]:
    """The nest in the order of its text, a line per loop, in C syntax."""
    names = names_of(nest)
    writer = Writer(nest, list(names.arrays))
    site = Site({loop: (point, 0) for loop, point in enumerate(names.points)})
    for at, loop in enumerate(nest.loops):
        point = names.points[at]
        first, end = (writer.index(bound, site) for bound in (loop.lower, loop.upper))
        by = f"{point}++" if loop.step == 1 else f"{point} += {loop.step}"
        yield f"{'    ' * at}for ({point} = {first}; {point} < {end}; {by})"
    for statement in nest.body:
        yield "    " * nest.depth + writer.statement(statement, site)


def _main(nest: Nest, function: str) -> Iterator[str]:
    array_names = names_of(nest).arrays
    names = [f"a{at}" for at in range(len(nest.arrays))]
    for name, array in zip(names, nest.arrays, strict=True):
        c = C_TYPES[array.dtype]
        yield f"{c} *{name} = room({array.bytes});"
    for at, (name, array) in enumerate(zip(names, nest.arrays, strict=True)):
        yield from fill.fill_c(array, at, name, C_TYPES[array.dtype])
    written = sorted(nest.written)
    for at in written:
        yield f"{C_TYPES[nest.arrays[at].dtype]} *first{at} = room({nest.arrays[at].bytes});"
        yield f"memcpy(first{at}, {names[at]}, {nest.arrays[at].bytes});"
    call = f"{function}({', '.join(names)});"
    yield call
    for at in written:
        yield f"double sum{at} = 0;"
        yield f"for (int64_t x = 0; x < {nest.arrays[at].elements}; x++)"
        yield f"    sum{at} += (double){names[at]}[x];"
        yield f'printf("sum of {array_names[at]} = %.9g\\n", sum{at});'
    again = (f"memcpy({names[at]}, first{at}, {nest.arrays[at].bytes});" for at in written)
    yield from timed(call, before=tuple(again))
    spread = '"median of %d calls after a first one; %.9f to %.9f s\\n"'
    yield f"fprintf(stderr, {spread}, calls, taken[0], taken[calls - 1]);"
    yield 'printf("%.9f s\\n", taken[calls / 2]);'
    for name in (*names, *(f"first{at}" for at in written)):
        yield f"free({name});"


#: Checks of row offsets, and of other bounds, by type. They do not end early, so that they use
#: vectors, and threads where rows are many.
_CHECKS = {
    "ascends": """\
static int embeddb_ascends_{dtype}(const {c} *p, int64_t first, int64_t last, int64_t most)
{{
    int bad = p[first] < 0 || p[last] > most;
#pragma omp parallel for simd reduction(| : bad) if (parallel : last - first > 100000)
    for (int64_t at = first; at < last; at++)
        bad |= p[at] > p[at + 1];
    return !bad;
}}
""",
    "within": """\
static int embeddb_within_{dtype}(const {c} *p, int64_t count, int64_t most)
{{
    int bad = 0;
#pragma omp parallel for simd reduction(| : bad) if (parallel : count > 100000)
    for (int64_t at = 0; at < count; at++)
        bad |= (p[at] < 0) | (p[at] > most);
    return !bad;
}}
""",
}
#: A line of the output of `gcc -E` before the text of a system header.
_HEADER = re.compile(r'^# \d+ ".*" [\d ]*\b3\b', re.M)
_FEATURES = re.compile(r"^[ \t]*#[ \t]*define[ \t]+_\w*SOURCE\b.*$", re.M)


@dataclass(frozen=True, slots=True)
class Tuned:
    """A nest of the file, its first and last line, its schedule, and a remark about its time."""

    nest: Nest
    lines: tuple[int, int]
    schedule: Schedule
    remark: str = ""


def program_in_place(
    source: str, file: str, read: CFile, tuned: Sequence[Tuned], partial: Sequence[int | str]
) -> tuple[str, list[str]]:
    """The text for `source`, whose name is `file`, and a line for each scop that is left unchanged.
    `tuned` are all nests of `read`; `partial` as in `Extraction`.

    Raises: NestError for a schedule without code.
    """
    text, quoted = source.splitlines(), file.replace("\\", "\\\\").replace('"', '\\"')
    body, functions, unchanged, at = [f'#line 1 "{quoted}"'], list[str](), list[str](), 0
    for scop in read.scops:
        own = [one for one in tuned if scop.start <= one.lines[0] <= scop.end]
        place = _Place(read, scop, own)
        if reason := place.reason(partial):
            unchanged.append(f"{file}:{scop.start}: these loops stay as they are: {reason}")
            continue
        body += [*text[at : scop.start - 1], *place.lines(text, quoted)]
        functions += [_function(one) for one in own]
        at = scop.end
    body += text[at:]
    head = [
        f"/* {file} with its loop nests as scheduled by embeddb: compile it in place of the file,",
        f"   with {_flags()}.",
        "   Results are the file's up to rounding: sums may run in another order, and numbers in",
        "   the text have the type of the arrays beside them. Arrays that are handed to one",
        f"   function may not overlap. {_NUMBERS} */",
        *(f"/* {line} */" for line in unchanged),
        *_FEATURES.findall(source),
    ]
    written = "\n".join([*functions, _FAST_END, *body]) + "\n"
    checks = [
        check.format(dtype=dtype, c=C_TYPES[dtype])
        for name, check in _CHECKS.items()
        for dtype in ("i32", "i64")
        if f"embeddb_{name}_{dtype}(" in written
    ]
    prelude = _prelude(math_called("\n".join(functions)), source)
    return "\n".join([*head, _FAST, prelude, *checks, written]), unchanged


def _prelude(called: Sequence[str], source: str) -> str:
    """The start of a file whose functions have `called` those of math.h: only one that includes it
    itself has such. The output of `gcc -E` holds the text of its headers, which a second one would
    contradict."""
    if not _HEADER.search(source):
        return PRELUDE if called else PLAIN_PRELUDE
    types = {name: "float" if name.endswith("f") else "double" for name in called}
    return "\n".join(
        [
            "typedef __INT32_TYPE__ int32_t;",
            "typedef __INT64_TYPE__ int64_t;",
            *(f"extern {c} {name}({c});" for name, c in types.items()),
            f"{HELPERS}\n",
        ]
    )


def _function(one: Tuned) -> str:
    """The function of a nest, not inlined: there the pointers would be those of the caller, which
    may overlap."""
    name = function_name(one.nest)
    text = c_function(one.nest, one.schedule, name)
    return text.replace(f"void {name}(", f"static __attribute__((noinline)) void {name}(", 1)


@dataclass(frozen=True, slots=True)
class _Place:
    """One scop, with its nests."""

    read: CFile
    scop: Scop
    tuned: Sequence[Tuned]

    def reason(self, partial: Sequence[int | str]) -> str:
        """Reason why it cannot be replaced; empty if it can."""
        for place in partial:
            if isinstance(place, int) and self._inside(place):
                return f"line {place} is not covered by a nest"
        if not self.tuned:
            return "they make no nest"
        names, around = self.read.names, self._around()
        for name, (text, line) in self.read.text.overridden.items():
            if line < self.scop.start:
                size = self.read.text.defines[name]
                return (
                    f"line {line} defines {name} as {text}, not {size}: put #ifndef {name} around"
                )
        for at in self._arrays():
            if names.array_names[at] != names.own_names[at]:
                return f"two arrays are called {names.own_names[at]}"
            if "register" in getattr(around.declaration(names.own_names[at]), "storage", ()):
                return f"{names.own_names[at]} is a register variable, which has no address"
        for name, text in self._fixed():
            if not text:
                return f"{name} has no exactly representable initial value"
        if unchecked := next(self._unchecked(), ""):
            return unchecked
        return next(self._lost(), "")

    def lines(self, text: Sequence[str], file: str) -> Iterator[str]:
        """The calls, and the original lines for other sizes."""
        scop, rooms = self.scop, self._rooms()
        yield f"/* {file}, lines {scop.start} to {scop.end} */"
        yield "{"
        for name, (c, count) in rooms.items():
            yield f"    {c} *{name} = ({c} *)calloc({count}, sizeof({c}));"
        yield f"    if ({' && '.join([*self._guards(), *rooms]) or '1'}) {{"
        for one in self.tuned:
            first, last = one.lines
            yield f"        /* lines {first} to {last}: {one.schedule.config}"
            yield f"           {one.remark or 'its time is not known'} */"
            arguments = ", ".join(
                self._argument(one.nest, at) for at in range(len(one.nest.arrays))
            )
            yield f"        {function_name(one.nest)}({arguments});"
        yield "    } else {"
        yield f'#line {scop.start + 1} "{file}"'
        yield from text[scop.start : scop.end - 1]
        yield "    }"
        yield from (f"    free({name});" for name in rooms)
        yield "}"
        yield f'#line {scop.end + 1} "{file}"'

    # -- arrays and scalars ------------------------------------------------------------------------

    def _around(self) -> AroundScop:
        return AroundScop(self.scop.function, self.scop.end)

    def _inside(self, line: int) -> bool:
        return self.scop.start <= line <= self.scop.end

    def _number(self, nest: Nest, at: int) -> int:
        """Index of a nest's array among the arrays of the file."""
        return self.read.names.array_names.index(nest.array_names[at])

    def _arrays(self) -> list[int]:
        numbers = (self._number(t.nest, at) for t in self.tuned for at in range(len(t.nest.arrays)))
        return list(dict.fromkeys(numbers))

    def _is_room(self, nest: Nest, at: int) -> bool:
        """True if an array of a nest is a scalar of the file that needs memory: one that is
        declared inside, or has an element per iteration of its loops."""
        number = self._number(nest, at)
        if self.read.program.arrays[number].shape:
            return False
        return self._inside(self.read.names.lines[number]) or nest.arrays[at].elements > 1

    def _rooms(self) -> dict[str, tuple[str, int]]:
        """Type and elements of memory that the nests need, by the name of its pointer."""
        rooms: dict[str, tuple[str, int]] = {}
        for one in self.tuned:
            for at, array in enumerate(one.nest.arrays):
                if self._is_room(one.nest, at):
                    rooms[self._room(one.nest, at)] = C_TYPES[array.dtype], array.elements
        return rooms

    def _room(self, nest: Nest, at: int) -> str:
        return f"embeddb_{nest.array_names[at]}"

    def _argument(self, nest: Nest, at: int) -> str:
        if self._is_room(nest, at):
            return self._room(nest, at)
        name = nest.array_names[at]
        scalar = not self.read.program.arrays[self._number(nest, at)].shape
        return f"({C_TYPES[nest.arrays[at].dtype]} *){'&' * scalar}{name}"

    def _lost(self) -> Iterator[str]:
        """A reason for each variable whose value after the scop is needed and is not set by the
        nests."""
        set_by_nests = {
            self.read.names.own_names[self._number(one.nest, at)]
            for one in self.tuned
            for at in one.nest.written
            if not self._is_room(one.nest, at)
        }
        around = self._around()
        for name in sorted(set_outside(self.scop.items) - set_by_nests):
            if reason := around.needs(name):
                yield reason
        for name in sorted(declared_by(self.scop.items)):
            if around.uses(name):
                yield f"{name} is declared in them and used after them"

    # -- rows ------------------------------------------------------------------------------------

    def _rows(self) -> Iterator[tuple[Nest, int]]:
        """Loops whose bounds come out of an array, and must be what its fill describes: for a
        dependence, or for the memory of a scalar with an element per iteration."""
        for one in self.tuned:
            loops = set(needs_ascending(one.nest))
            for _, access, _ in one.nest.accesses():
                if self._is_room(one.nest, access.array):
                    loops |= access.loops
            for at in sorted(loops):
                bounds = one.nest.loops[at].lower, one.nest.loops[at].upper
                if any(bound.of is not None for bound in bounds):
                    yield one.nest, at

    def _bounded(self) -> Iterator[tuple[Nest, int, int]]:
        """Other loops whose bounds come out of an array, and that array: its fill sets the extent
        of blocks, copies and rooms."""
        rows = set(self._rows())
        for one in self.tuned:
            nest, schedule = one.nest, one.schedule
            rooms = any(self._is_room(nest, at) for at in range(len(nest.arrays)))
            if not (rooms or schedule.pack != "none" or any(schedule.tiles)):
                continue
            for at, loop in enumerate(nest.loops):
                for bound in (loop.lower.of, loop.upper.of):
                    if bound is not None and (nest, at) not in rows:
                        yield nest, at, bound.array

    def _unchecked(self) -> Iterator[str]:
        """A line for each loop of `_rows` or `_bounded` that cannot be checked before the scop
        runs."""
        written = {self._number(one.nest, at) for one in self.tuned for at in one.nest.written}
        for nest, at in self._rows():
            bounds = nest.loops[at].lower.of, nest.loops[at].upper.of
            arrays = {bound.array for bound in bounds if bound is not None}
            if at not in Distances(nest).rows or written & {self._number(nest, a) for a in arrays}:
                names = ", ".join(nest.array_name(array) for array in sorted(arrays))
                yield f"bounds of loop {nest.loop_name(at)} in {names} cannot be checked before it"
        for nest, at, array in self._bounded():
            if self._number(nest, array) in written:
                loop, name = nest.loop_name(at), nest.array_name(array)
                yield f"bounds of loop {loop} in {name} cannot be checked before it"

    def _contents(self) -> Iterator[str]:
        """Conditions under which the offsets of rows ascend as far as they are read, and other
        bounds are in their range."""
        for nest, _, bounds in self._bounded():
            array, pointer = nest.arrays[bounds], self._argument(nest, bounds)
            most = values_of(array)[1]
            yield f"embeddb_within_{array.dtype}({pointer}, {array.elements}, {most})"
        for nest, at in self._rows():
            offsets = nest.loops[at].lower.of
            assert offsets is not None
            array, (row,) = nest.arrays[offsets.array], offsets.at
            loops = tuple(map(ending_at_last, nest.loops))
            first, last = index_range(loops, nest.arrays, row)
            most = values_of(array)[1]
            pointer = self._argument(nest, offsets.array)
            yield f"embeddb_ascends_{array.dtype}({pointer}, {first}, {last + 1}, {most})"

    # -- what the nests were read for --------------------------------------------------------------

    def _fixed(self) -> Iterator[tuple[str, str]]:
        """Scalars replaced by their initial value that are visible from the scop."""
        around, indices = self._around(), outer_indices(self.scop.items)
        for (name, local), (text, line) in self.read.names.fixed.items():
            own = around.declaration(name)
            visible = line < self.scop.start and local == (own.coord.line if own else 0)
            if visible and self._named(name) and name not in indices:
                yield name, text

    def _named(self, name: str) -> bool:
        """True if the function uses a name up to the end of the scop."""
        lines = self.read.text.text.split("\n")[self.scop.function.coord.line - 1 : self.scop.end]
        return re.search(rf"\b{re.escape(name)}\b", "\n".join(lines)) is not None

    def _guards(self) -> Iterator[str]:
        text = self.read.text
        for name, (value, line) in text.macros.items():
            if line < self.scop.start:
                yield f"{name} == ({value})"
        for name, requested in text.defines.items():
            if name not in text.macros and self._named(name):
                yield f"{name} == {requested!r}"
        for name, value in self._fixed():
            yield f"{name} == {value}"
        names, arrays = self.read.names, self.read.program.arrays
        for at in self._arrays():
            if not self._inside(names.lines[at]):
                name, rank = names.own_names[at], len(arrays[at].shape)
                yield f"sizeof({name}{'[0]' * rank}) == {DTYPES[arrays[at].dtype]}"
        yield from dict.fromkeys(self._contents())
