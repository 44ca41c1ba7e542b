"""A schedule as a file of C that compiles and runs alone, as written by `query --emit`."""

from __future__ import annotations

from collections.abc import Iterator

from embeddb.kernels.emitter import INCLUDES, TOOLS, timed
from embeddb.kernels.nests.expressions import C_TYPES, Site, Writer, function_name, names_of
from embeddb.kernels.nests.generate import PRELUDE, c_function, flags
from embeddb.nests.nest import Nest
from embeddb.nests.schedule import Schedule
from indexer.runners.nest_code import fill

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
    are reset: `gcc -O3 -march=native -fopenmp FILE.c -lm`.

    Raises: NestError for a schedule without code.
    """
    name = function_name(nest)
    lines = [
        "/* Written by embeddb: one loop nest, scheduled.",
        "",
        *(f"       {line}" for line in nest_lines(nest)),
        "",
        f"   Schedule: {_settings(schedule)}",
        "   Compile:  gcc -O3 -march=native -fopenmp FILE.c -lm",
        f"   It was measured with {' '.join(f for f in flags() if f not in ('-fPIC', '-shared'))}",
        "   The numbers that it starts from are made up; no two pointers may overlap. */",
        *(f"/* It has rows like those of matrix {name}. */" for name in _matrices(nest)),
        *(f"#include <{header}>" for header in INCLUDES),
    ]
    function = c_function(nest, schedule, name)
    body = "\n".join(f"    {line}" if line else "" for line in _main(nest, name))
    return "\n".join(
        [*lines, PRELUDE, function, fill.FILL_FUNCTIONS, TOOLS, _MAIN.format(body=body)]
    )


def _matrices(nest: Nest) -> list[str]:
    return sorted(set(nest.matrix_ids.values()))


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


def _settings(schedule: Schedule) -> str:
    settings = []
    for key, value in schedule.config.items():
        text = " ".join(value) if isinstance(value, tuple) else value
        settings.append(f"{key}={text}")
    return ", ".join(settings)


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
