"""Records of an export: platforms, patterns with their vectors, runs with fewer numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from embeddb.core.files.safe_write import OwnFolder, whole_file
from embeddb.core.records import ARRAYS, REPEAT, Run, WorkloadInfo
from embeddb.featurizers.base import Travelling
from embeddb.featurizers.row_lengths import ROW_LENGTHS, RowHistograms
from embeddb.index.lookup import Lookup
from embeddb.nests.nest import Nest
from embeddb.nests.nest_text import nest_text
from embeddb.store import RunTable, Store
from embeddb.store.model_files import MODELS, register_files
from embeddb.store.models import facts_of
from indexer.readers.embeddb import ModelDoc, PlatformDoc

#: Featurizers whose vectors are exported with the patterns.
_TRAVELS = ("stats", "scnn")


def abridged(run: Run) -> Run:
    """The run with its repeats summarised by minimum, median and maximum, its time rounded to the
    minute, and of its context only the entries that decide whether it counts or distinguish it from
    an equal one."""
    m = run.measurement
    short = msgspec.structs.replace(
        m,
        times_s=_quantiles(m.times_s, (0.0, 0.5, 1.0)),
        cpu_max_s=_quantiles(m.cpu_max_s, (0.5,)),
        cpu_sum_s=_quantiles(m.cpu_sum_s, (0.5,)),
        conversion_s=None if m.conversion_s is None else float(f"{m.conversion_s:.3g}"),
        compile_s=None,
        when=60.0 * round(m.when / 60),
        context={key: fact for key, fact in m.context.items() if key in (ARRAYS, REPEAT)},
    )
    return replace(run, measurement=short)


def _quantiles(times: tuple[float, ...], at: tuple[float, ...]) -> tuple[float, ...]:
    if len(times) <= len(at):
        return tuple(float(f"{t:.4g}") for t in times)
    return tuple(float(f"{t:.4g}") for t in np.quantile(times, at))


def platform_docs(store: Store) -> list[PlatformDoc]:
    """Export records of every readable platform."""
    docs = []
    for platform_id in store.platforms():
        platform = store.platform(platform_id)
        if platform is not None:
            docs.append(PlatformDoc(platform_id, platform.text, dict(platform.environment)))
    return docs


def with_features(
    db: Lookup, infos: list[WorkloadInfo], *, few: bool = False
) -> Iterator[WorkloadInfo]:
    """Patterns with their vectors among the features, so that they can be compared without
    structure. Those of a `few` are looked up by their keys."""
    there = db.featurizers()
    readers: list[Travelling | RowHistograms] = [
        plug for name in _TRAVELS if isinstance(plug := there.get(name), Travelling)
    ]
    readers.append(ROW_LENGTHS)
    every, get, ids = db.store.vectors.every, db.store.vectors.get, [info.id for info in infos]
    stored = [
        (r, get(r.name, r.version, ids) if few else every(r.name, r.version)) for r in readers
    ]
    for info in infos:
        features = dict(info.features)
        for reader, vectors in stored:
            if info.id in vectors:
                features |= reader.as_features(vectors[info.id])
        yield msgspec.structs.replace(info, features=features)


#: Files of models that rank, as a database names them.
_ADOPTED = ("costmodel-*.safetensors", "kernels-*.safetensors", "towers.safetensors")


def model_docs(store: Store, chosen: list[RunTable] | None) -> Iterator[ModelDoc]:
    """Cards of the registered models, by version; of a selection only cost models for it. The
    models themselves are left out."""
    wanted = {(p.platform.partition("@")[0], p.op.name) for p in chosen or ()}
    for entry in store.models.entries():
        facts = facts_of(entry)
        if chosen is None or (facts.platform, facts.kernel) in wanted:
            yield ModelDoc(entry.version, entry.registered, dict(entry.card))


def adopt_models(db: Lookup, folder: Path) -> int:
    """Copy cost models, those of tensor kernels, and towers from `folder` into a database on disk
    and register them; returns their number. Those of the starter lie beside its file: an export
    has runs, not models."""
    assert db.store.path is not None
    home = OwnFolder(db.store.path, MODELS)
    models = sorted(path for names in _ADOPTED for path in folder.glob(names))
    for model in models:
        home.write(model.name, model.read_bytes())
    register_files(db.store)
    return len(models)


#: Bytes and nests of a file; `indexer.frontends` reads twice as much of one.
_MOST_BYTES, _MOST_NESTS = 8 << 20, 5000


def one_name_each(infos: Iterable[WorkloadInfo]) -> list[WorkloadInfo]:
    """Replace the name by the id where a nest has no name, or several share it."""
    infos = list(infos)
    count = Counter(info.name for info in infos if info.kind == "nest")
    return [
        msgspec.structs.replace(info, name=info.id)
        if info.kind == "nest" and (not info.name or count[info.name] > 1)
        else info
        for info in infos
    ]


def write_nests(nests: Iterable[tuple[str, Nest]], export: Path) -> list[str]:
    """Write nests by their export names into as few files as can be read: beside `runs.csv`
    `runs.nests.json`, then `runs.nests-2.json`. Returns the names of these files.

    Raises: OSError.
    """
    stem = export.name.removesuffix(".gz").rpartition(".")[0] or export.name
    written: list[str] = []
    for texts in _files(nest_text(replace(nest, name=name)) for name, nest in nests):
        number = f"-{len(written) + 1}" if written else ""
        path = export.with_name(f"{stem}.nests{number}.json")
        with whole_file(path) as out:
            out.write(b"[" + b",\n".join(texts) + b"]\n")
        written.append(str(path))
    return written


def _files(texts: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for text in texts:
        if batch and (size + len(text) > _MOST_BYTES or len(batch) == _MOST_NESTS):
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch
