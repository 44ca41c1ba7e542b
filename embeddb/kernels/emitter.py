"""Lines of generated C, and functions for programs that time it."""

from __future__ import annotations

from dataclasses import dataclass

_WIDTH = 100


@dataclass
class Lines:
    """Lines of C with indentation."""

    text: list[str]
    depth: int = 1

    def add(self, *lines: str) -> None:
        self.text += [
            line if line.startswith("#") else "    " * self.depth + line for line in lines
        ]

    def open(self, line: str) -> None:
        self.add(line + " {")
        self.depth += 1

    def block(self) -> None:
        """Open a block, with its own scope of names."""
        self.add("{")
        self.depth += 1

    def close(self, count: int = 1) -> None:
        for _ in range(count):
            self.depth -= 1
            self.add("}")


def signature(head: str, parameters: list[str]) -> list[str]:
    """The head of a function, broken into lines."""
    line = f"{head}({', '.join(parameters)})"
    if len(line) <= _WIDTH:
        return [line]
    rest = [f"    {one}," for one in parameters[:-1]]
    return [f"{head}(", *rest, f"    {parameters[-1]})"]


def step(variable: str, by: int) -> str:
    return f"{variable}++" if by == 1 else f"{variable} += {by}"


INCLUDES = ("stdio.h", "stdlib.h", "string.h", "time.h")
#: C helper functions, which need `INCLUDES`.
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
    """C lines that time a call 5 to 101 times, each after `before`: sorted seconds in `taken`,
    their number in `calls`. The warm-up call is made before."""
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
