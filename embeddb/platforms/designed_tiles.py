"""Samples of the legal tiles of a kernel: spread over sizes to measure, or uniform to predict."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from embeddb.core.config import Config
from embeddb.platforms.space.space import ConfigSpace

#: Up to this many combinations are enumerated; above it, so many are drawn per requested tile.
_MOST_LISTED = 20_000
_DRAWN = 30
#: Draws per tile to predict: a query must not wait where tiles are hardly ever legal.
_TRIES = 3


def designed_tiles(
    space: ConfigSpace, default: Config, count: int, *, rng: np.random.Generator
) -> list[Config]:
    """At most `count` tiles, the default first: all legal ones, or a sample stratified by size,
    the binary logarithm of the elements of a tile times the terms of a block. `space` is that of
    one kernel."""
    others = [config for config in _legal(space, default, count, rng) if config != default]
    if len(others) < count:
        return [default, *others]
    order = [others[int(at)] for at in rng.permutation(len(others))]
    by_size: dict[int, list[Config]] = {}
    for config in order:
        by_size.setdefault(_size(space, config), []).append(config)
    turns = itertools.zip_longest(*(by_size[size] for size in sorted(by_size)))
    spread = (config for turn in turns for config in turn if config is not None)
    return [default, *itertools.islice(spread, count - 1)]


def drawn_tiles(
    space: ConfigSpace, default: Config, count: int, *, rng: np.random.Generator
) -> list[Config]:
    """At most `count` legal tiles without the default, from all combinations or, if there are
    more, from three times `count` draws."""
    domains = _domains(space, default)
    every = math.prod(map(len, domains.values()))
    places: Sequence[int] = range(every)
    if every > _TRIES * count:
        places = rng.integers(every, size=_TRIES * count).tolist()
    excluded = dict(default)
    combinations = (_at(domains, place) for place in dict.fromkeys(places))
    legal = (v for v in combinations if v != excluded and space.reason(v) is None)
    return [Config(values) for values in itertools.islice(legal, count)]


def _at(domains: Mapping[str, Sequence[int]], place: int) -> dict[str, int]:
    """The combination of values with a number."""
    values = {}
    for name, domain in domains.items():
        place, at = divmod(place, len(domain))
        values[name] = domain[at]
    return values


def _domains(space: ConfigSpace, default: Config) -> dict[str, list[int]]:
    """The default and the values below the whole extent, by parameter."""
    params = {param.name: param for param in space.params}
    domains = {}
    for name in default:
        values = [v for v in space.domain(params[name]) if isinstance(v, int)]
        domains[name] = [v for v in values if v == default[name] or v < _whole(space, name)]
    return domains


def _legal(
    space: ConfigSpace, default: Config, count: int, rng: np.random.Generator
) -> Iterator[Config]:
    """Distinct legal tiles."""
    domains = _domains(space, default)
    if math.prod(map(len, domains.values())) <= _MOST_LISTED:
        for values in itertools.product(*domains.values()):
            config = Config(dict(zip(domains, values, strict=True)))
            if space.reason(config) is None:
                yield config
        return
    seen: set[Config] = set()
    for _ in range(_DRAWN * count):
        drawn = Config({n: v[int(rng.integers(len(v)))] for n, v in domains.items()})
        if drawn not in seen and space.reason(drawn) is None:
            seen.add(drawn)
            yield drawn


def _whole(space: ConfigSpace, name: str) -> int:
    symbol = "REDUCED" if name == "tr" else f"DIM_{name[1:]}"
    return space.symbols.get(symbol, 1)


def _size(space: ConfigSpace, config: Config) -> int:
    sizes = (int(str(value)) or _whole(space, name) for name, value in config.items())
    return math.prod(sizes).bit_length()
