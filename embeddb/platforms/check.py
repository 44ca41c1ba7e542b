"""The contract suite for platform files: the checks that parsing alone cannot do.

Run it on your own file, from a test or with `embeddb platform check FILE`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from embeddb.core import plugins
from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError
from embeddb.core.kinds import operation_of
from embeddb.core.row_lengths import estimated
from embeddb.core.sizes import Sizes
from embeddb.platforms.command import missing_program
from embeddb.platforms.derived import DerivedQuantities
from embeddb.platforms.platform import (
    Platform,
    builtin_platforms,
    default_of,
    load_platform,
    parse_platform,
    space_of,
)
from embeddb.platforms.space.space import ConfigSpace

_WIDTHS = (1, 8, 32, 128, 512)
#: Names of traits that are meant as a clock.
_CLOCK = re.compile(r"(?i)clock(_[gmk]?hz)?|core_clock.*|freq|frequency.*")


def check_platform(platform: Platform, *, samples: int = 40) -> list[str]:
    """Problems of a platform, one line each, naming kernel and parameter; empty if there are none.

    Per kernel: the default is legal on matrices of every size; every value of every parameter
    occurs in some legal configuration; each of `samples` configurations is legal, survives its
    text form, has legal neighbours, is nearest to itself and maps to a loop nest; the kind's sample
    workloads, which have rules of their own, admit the default and further configurations; every
    derived quantity applies to some configuration on some size. The source text gives the same
    digest when parsed again; its name and version are not those of another, built-in platform; no
    trait looks like a clock and is none.
    """
    rng = np.random.default_rng(0)
    problems: list[str] = []
    try:
        again = parse_platform(platform.text, where=platform.name)
        if again.digest != platform.digest:
            problems.append("the source text gives another digest than the platform")
    except EmbeddbError as error:
        problems.append(f"the source text cannot be parsed: {error}")
    problems += _whole(platform)
    for kernel in platform.ops:
        lines = [
            *_default(platform, kernel),
            *_values(platform, kernel),
            *_samples(platform, kernel, samples, rng),
            *_quantities(platform, kernel, samples, rng),
            *_workloads(platform, Op(kernel), rng),
        ]
        problems += [f"{kernel}: {line}" for line in dict.fromkeys(lines)]
    return problems


def _whole(platform: Platform) -> Iterator[str]:
    """Problems of the name and the traits."""
    name = platform.name
    ours = load_platform(name) if name in builtin_platforms() else platform
    # A file of another version may be an older one of the built-in platform, whose runs count.
    if ours.version == platform.version and ours.digest != platform.digest:
        yield f"name: {name!r} is another platform, which is built in: give yours another name"
    for trait, fact in platform.traits.items() if platform.counts_cycles else ():
        number = isinstance(fact, (int, float)) and not isinstance(fact, bool)
        if number and _CLOCK.fullmatch(trait):
            yield (
                f"traits.{trait}: is not read as the clock, so times stay cycles: write "
                "`clock_ghz`, in GHz, or give this fact another name"
            )


def check_programs(platform: Platform) -> list[str]:
    """Problems of what measures a platform on this machine: its runner, a command's programs."""
    if platform.runner and platform.runner not in (names := plugins.available("runner")):
        return [f"runner: no plug-in here has the name {platform.runner!r}: {', '.join(names)}"]
    here = Path(platform.file).parent if platform.file else None
    if platform.command and here and (missing := missing_program(platform.command, here)):
        return [f"command.{missing}: build it, or correct its path"]
    return []


def _operations(kernel: str) -> list[Op]:
    operation, _ = operation_of(kernel)
    return [Op(kernel, width) for width in (_WIDTHS if operation.wide else (1,))]


def _default(platform: Platform, kernel: str) -> Iterator[str]:
    for op in _operations(kernel):
        for sizes in op.workload.sample_sizes():
            space = platform.space(op, sizes)
            # A nest's declared default is partial: the original loops complete it.
            whole = platform.default(op, sizes) if sizes.named else platform.kernel(op).default
            reason = space.reason(whole)
            if reason:
                cure = space.cure(whole)
                problem = f"{reason}; {cure}" if cure else reason
                yield f"the default is not legal for {op} on {op.workload.sized(sizes)}: {problem}"
                return  # one example is enough: the others are the same mistake


def _values(platform: Platform, kernel: str) -> Iterator[str]:
    """Values that no legal configuration has, among the parameters of parts that can be listed."""
    space = platform.kernel(kernel).space
    if space.size() == 1 and space.params:
        yield "there is only one legal configuration, so nothing to choose"
    if space.rules.workload.structural:
        return  # which parameters there are depends on the subject
    for part in space.parts:
        if part.listed is None:
            continue
        seen = {(n, v) for assignment in part.listed for n, v in assignment.items()}
        for name in part.names:
            param = next(p for p in space.params if p.name == name)
            dead = [v for v in param.values if (name, v) not in seen]
            if param.kind != "permutation" and dead:
                shown = ", ".join(map(str, dead))
                yield f"parameter {name!r}: no legal configuration has the value {shown}"


def _samples(
    platform: Platform, kernel: str, samples: int, rng: np.random.Generator
) -> Iterator[str]:
    unfound = []
    for op in _operations(kernel)[-2:]:
        examples = op.workload.sample_sizes()
        for sizes in examples:
            space, default = platform.space(op, sizes), platform.default(op, sizes)
            drawn = space.sample(max(1, samples // len(examples)), rng=rng)
            if not drawn:
                legal = space.reason(default) is None
                drawn = [default] if legal else []
                unfound.append(_unfound(f"{op} on {op.workload.sized(sizes)}", legal=legal))
            for config in drawn:
                yield from _config(platform, op, space, config, sizes)
    yield from unfound[:1]  # one example is enough


def _unfound(where: str, *, legal: bool) -> str:
    """The problem of a space of which random draws find nothing; its default may be legal."""
    if not legal:
        return f"no legal configuration was found for {where}"
    return (
        f"random draws found no legal configuration but the default for {where}, so little else "
        "would be measured: leave out values that constraints exclude"
    )


def _quantities(
    platform: Platform, kernel: str, samples: int, rng: np.random.Generator
) -> Iterator[str]:
    """Quantities that never apply, on workloads with rows of equal length."""
    names = platform.quantities(Op(kernel)).names
    applies = np.zeros(len(names), dtype=bool)
    for op in _operations(kernel) if names else ():
        for sizes in op.workload.sample_sizes():
            drawn = platform.space(op, sizes).sample(samples, rng=rng)
            lengths = estimated(sizes.m, sizes.nnz)
            values = DerivedQuantities(platform, op, drawn).values(sizes, lengths)
            applies |= np.isfinite(values).any(axis=0)
    for name, there in zip(names, applies, strict=True):
        if not there:
            yield (
                f"quantity {name!r} applies to no configuration: it reads a parameter that is not "
                "there, divides by zero or is negative"
            )


def _workloads(platform: Platform, op: Op, rng: np.random.Generator) -> Iterator[str]:
    unfound = []
    for one in op.workload.samples():
        space, default = space_of(platform, op, one), default_of(platform, op, one)
        reason = space.reason(default)
        if reason:
            yield f"the default is not legal for the {one.kind} {one.name}: {reason}"
        elif not space.sample(4, rng=rng):
            unfound.append(_unfound(f"the {one.kind} {one.name}", legal=True))
    yield from unfound[:1]


def _config(
    platform: Platform, op: Op, space: ConfigSpace, config: Config, sizes: Sizes
) -> Iterator[str]:
    if space.reason(config) is not None:
        yield f"the sampled {config} is not legal: {space.reason(config)}"
        return
    if Config.parse(str(config)) != config:
        yield f"{config} does not survive its text form"
    if space.canonical(config) != config:
        yield f"{config} is not canonical"
    if space.nearest(config) != config:
        yield f"{config} is not nearest to itself"
    for other in space.neighbours(config)[:5]:
        if other == config or space.reason(other) is not None:
            yield f"{other}, a neighbour of {config}, is not another legal configuration"
    try:
        nest = platform.loopnest(op, config, sizes)
    except EmbeddbError as error:
        yield f"{config} has no loop nest: {error}"
        return
    if nest is not None and not all(math.isfinite(x) for x in nest.vector()):
        yield f"the loop nest of {config} is not finite"
