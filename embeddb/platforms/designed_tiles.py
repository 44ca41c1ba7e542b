"""Tiles of a kernel that are worth a measurement, some of every size, or a prediction."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from embeddb.core.config import Config
from embeddb.platforms.space.space import ConfigSpace

#: So many combinations are judged one by one; of more, so many are drawn for each tile wanted.
_MOST_LISTED = 20_000
_DRAWN = 30
#: Of tiles to predict: a question must not wait for tiles that are hardly ever legal.
_TRIES = 3


def designed_tiles(
    space: ConfigSpace, default: Config, count: int, *, rng: np.random.Generator
) -> list[Config]:
    """The default first, then all legal tiles if there are no more than `count` with it, else a
    sample of them: equally many, as far as there are so many, of every power of two in which the
    elements of a tile times the terms of a block lie. `space` is that of one kernel.
    """
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
    """At most `count` legal tiles, the default not among them: all combinations are tried where
    they are no more than three times as many, else so many are drawn."""
    domains = _domains(space, default)
    every = math.prod(map(len, domains.values()))
    places: Sequence[int] = range(every)
    if every > _TRIES * count:
        places = rng.integers(every, size=_TRIES * count).tolist()
    untried, found = dict(default), list[Config]()
    for place in dict.fromkeys(places):
        if len(found) == count:
            break
        values = _at(domains, place)
        if values != untried and space.reason(values) is None:
            found.append(Config(values))
    return found


def _at(domains: Mapping[str, Sequence[int]], place: int) -> dict[str, int]:
    """The combination of a number."""
    values = {}
    for name, domain in domains.items():
        place, at = divmod(place, len(domain))
        values[name] = domain[at]
    return values


def _domains(space: ConfigSpace, default: Config) -> dict[str, list[int]]:
    """Values that can be part of a tile: alone it may only be one of too many tiles."""
    params = {param.name: param for param in space.params}
    domains = {}
    for name in default:
        values = [v for v in space.domain(params[name]) if isinstance(v, int)]
        domains[name] = [v for v in values if v == default[name] or v < _whole(space, name)]
    return domains


def _legal(
    space: ConfigSpace, default: Config, count: int, rng: np.random.Generator
) -> Iterator[Config]:
    """Each once."""
    domains = _domains(space, default)
    if math.prod(map(len, domains.values())) <= _MOST_LISTED:
        made = (dict(zip(domains, v, strict=True)) for v in itertools.product(*domains.values()))
        yield from (c for c in map(Config, made) if space.reason(c) is None)
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
