"""Functions of C for programs that time generated code: a clock, memory, an order of numbers."""

from __future__ import annotations

__all__ = ["INCLUDES", "TOOLS", "timed"]

INCLUDES = ("stdio.h", "stdlib.h", "string.h", "time.h")
#: They need `INCLUDES`.
TOOLS = """\
static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *room(size_t bytes)
{
    void *made = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!made) {
        fprintf(stderr, "no memory for %zu bytes\\n", bytes);
        exit(1);
    }
    return made;
}

static int in_order(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
"""


def timed(call: str, *, before: tuple[str, ...] = ()) -> list[str]:
    """Lines that make a call 5 to 101 times, each after `before`, and leave its sorted seconds in
    `taken`, their number in `calls`; it ran once already, which does not count."""
    return [
        "double taken[101], all = 0;",
        "int calls = 0;",
        "while (calls < 5 ? !calls || all < 10.0 : calls < 101 && all < 0.2) {",
        *(f"    {line}" for line in before),
        "    const double start = seconds();",
        f"    {call}",
        "    taken[calls] = seconds() - start;",
        "    all += taken[calls++];",
        "}",
        "qsort(taken, (size_t)calls, sizeof taken[0], in_order);",
    ]
