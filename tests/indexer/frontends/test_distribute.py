"""Programs of chance cut into nests: these compute what the program computed, turn by turn."""

from __future__ import annotations

import random

import numpy as np
from nest_evaluation import run, run_program

from embeddb.core.errors import NestError
from indexer.frontends.c.scop import read_c
from indexer.frontends.distribute import nests_of

NAMES = ("i", "j", "k")


def element(rng: random.Random, depth: int) -> str:
    loops = [*NAMES[:depth], "2"]
    one, other = rng.choice(loops), rng.choice(loops)
    shift = rng.choice(("", "", " + 1", " - 1"))
    return rng.choice((f"A[{one}{shift}][{other}]", f"x[{one}{shift}]", f"y[{one}]"))


def statement(rng: random.Random, depth: int) -> str:
    target = rng.choice((element(rng, depth), element(rng, depth), "s", "t"))
    value = rng.choice((element(rng, depth), element(rng, depth), "s", "t", "0.5"))
    text = f"{target} {rng.choice(('=', '=', '+=', '-='))} {value} * 0.5 + 1.5;"
    return f"if ({element(rng, depth)} > 0.7) {text}" if rng.random() < 0.1 else text


def block(rng: random.Random, depth: int = 0) -> str:
    """A loop over statements and loops; in some, scalars of each turn."""
    name = NAMES[depth]
    up, down = f"{name} = 1; {name} < 5; {name}++", f"{name} = 4; {name} > 0; {name}--"
    corner = [f"{name} = {NAMES[depth - 1]}; {name} < 5; {name} += 2"] if depth else []
    inside = ["double s = 0.25, t = x[i];"] if rng.random() < 0.5 else []
    for _ in range(rng.randint(1, 3)):
        deeper = depth < 2 and rng.random() < 0.5
        inside.append(block(rng, depth + 1) if deeper else statement(rng, depth + 1))
    return f"for (int {rng.choice([up, up, down, *corner])}) {{ {' '.join(inside)} }}"


def test_nests_compute_what_the_program_computes() -> None:
    cut, split = 0, 0
    for seed in range(80):
        rng = random.Random(seed)
        blocks = [block(rng) for _ in range(rng.randint(1, 2))]
        source = (
            "double A[6][6], x[6], y[6];\nvoid f(void) {\ndouble s, t;\n#pragma scop\n"
            + "\n".join(blocks)
            + "\n#pragma endscop\n}\n"
        )
        program = read_c(source, name="p").program
        try:
            found = nests_of(program)
        except NestError as error:
            assert "no loop nest" in error.reason, source
            continue
        if any("cut off" in note for note in found.notes):
            cut += 1
            continue
        split += len(found.nests) > len(blocks)
        data = np.random.default_rng(seed)
        held = {"A": data.random((6, 6)), "x": data.random(6), "y": data.random(6)}
        expected = {name: array.copy() for name, array in held.items()}
        run_program(program, expected)
        run(found.nests, held)
        for name in ("A", "x", "y"):
            np.testing.assert_allclose(held[name], expected[name], rtol=1e-9, err_msg=source)
    assert split >= 10 and cut >= 10, (split, cut)
