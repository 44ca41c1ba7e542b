"""The learned cost model at query time: configurations of one matrix ranked without running them.

Either an ensemble of small networks (`embeddb.cost_model.network_torch`) over the matrix's vector,
the common loop nest and the platform's own parameters, added to the platform's prior: what a
configuration gains on average, from a ridge regression on the same numbers and, where it was
measured, its own mean. Or boosted trees on the same (`embeddb.cost_model.trees_numpy`), which may
read what another platform's model predicts, too. Or a Gaussian process for each op
(`embeddb.cost_model.gaussian`). All need numpy alone, and the process scipy.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError, InputError, ModelError
from embeddb.core.files import model_file
from embeddb.core.files.safe_read import reason_of, refusing
from embeddb.core.sizes import Sizes
from embeddb.cost_model import Problem
from embeddb.cost_model.encoders.inputs import (
    ConfigColumns,
    TreeTable,
    nest_inputs,
    numeric_facts,
    problem,
    seen_parts,
)
from embeddb.cost_model.encoders.latent import LatentEncoder, from_tensors
from embeddb.cost_model.encoders.loop_nest import HOMOGENEOUS_DIM
from embeddb.cost_model.gaussian import GaussianProcess
from embeddb.cost_model.network_numpy import (
    FUSIONS,
    PARTS,
    Mlp,
    calibration_problem,
    form_of,
)
from embeddb.cost_model.trees_numpy import Forest
from embeddb.platforms.platform import Platform

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]
    Floats = NDArray[np.float64]

#: Prepared sets of configurations that are remembered.
_REMEMBERED = 8
_MOST_MEMBERS = 64
#: Columns are counted in 16 bits.
_MOST_COLUMNS = 32_000
#: Of so many of the best predicted a process gives each its own spread.
_DETAILED = 192
_AGAIN = "train it again with `embeddb train costmodel`"


def space_digest(platform: Platform, op: Op | str) -> str:
    """16 hex digits that change when a configuration of this kernel means something else."""
    form = platform.kernel(op).digest_form()
    text = json.dumps(form, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    """What of c configurations does not depend on the matrix: loop nests float32[c,65], the prior,
    and for each member what its form has prepared."""

    nests: NDArray[np.float32]
    prior: Floats
    members: tuple[Any, ...]


class CostModel:
    """A trained model: its `card` and its tensors by name; `version` is "" until it is saved.

    Tensors: `scale.center`, `scale.scale` float32[d]; `member.I.NAME` the networks' weights;
    `latent.NAME` the encoder's; of each op trained on, `prior.OP.nest` float32[53],
    `prior.OP.latent` float32[e], `prior.OP.ids` uint8[k,16] of measured configurations and
    `prior.OP.rest` float32[k], what each gains beyond the regression. Or `process.OP.NAME` of the
    Gaussian process of each op.
    """

    def __init__(self, card: Mapping[str, Any], tensors: Arrays, *, where: str = "") -> None:
        """Raises: ModelError for tensors that are missing, of another shape or not finite."""
        self.card = dict(card)
        self.tensors = dict(tensors)
        self.version = ""
        self.source: CostModel | None = None
        self._remembered: OrderedDict[Any, _Prepared] = OrderedDict()
        self._processes: dict[Op, GaussianProcess] = {}
        self._columns: OrderedDict[Any, ConfigColumns] = OrderedDict()
        try:
            self._check()
        except EmbeddbError as e:
            text = e.reason if isinstance(e, InputError) else str(e)
            own = e.hint if isinstance(e, ModelError) else ""
            raise ModelError(text, where=where, hint=own or _AGAIN) from None
        except Exception as e:
            text = f"not a whole cost model: {reason_of(e)}"
            raise ModelError(text, where=where, hint=_AGAIN) from e

    # -- files -----------------------------------------------------------------------------

    @classmethod
    def load(cls, path: str | Path) -> CostModel:
        """The model of a file. Raises: ModelError naming the file."""
        with refusing(ModelError, where=str(path), hint=_AGAIN):
            file = model_file.read(path, kind="costmodel")
            model = cls(file.card, file.tensors, where=str(path))
        model.version = file.version
        return model

    def save(self, path: str | Path) -> str:
        """Write the file, whole or not at all; returns the version, which is then the model's.

        Raises: ModelError if it cannot be written.
        """
        self.version = model_file.save(path, self.tensors, self.card)
        return self.version

    # -- what it is ------------------------------------------------------------------------

    @property
    def predictor(self) -> str:
        """`gp`, `trees` or the name of a network's form."""
        return str(self.card["settings"]["predictor"])

    @property
    def reads_lengths(self) -> bool:
        """True if derived quantities are among its inputs, which read the lengths of rows."""
        return bool(self.card.get("derived") or (self.source and self.source.reads_lengths))

    @property
    def machines(self) -> tuple[str, ...]:
        """The instances it learned from, if it answers for every machine of a platform; else
        none."""
        return tuple(map(str, self.card.get("machines", ())))

    def imputed(self, platform: Platform) -> list[str]:
        """Names of the facts that it or its source reads and the machine does not report; a mean
        stands in for each."""
        reported = numeric_facts(platform)
        of_source = [] if self.source is None else self.source.imputed(platform)
        own = [name for name, _ in self.card.get("facts", ()) if name not in reported]
        return list(dict.fromkeys([*own, *of_source]))

    @property
    def members(self) -> int:
        return int(self.card["settings"]["members"])

    @property
    def ops(self) -> tuple[Op, ...]:
        """The ops it was trained on."""
        return tuple(Op.parse(text) for text in self.card["ops"])

    @cached_property
    def table(self) -> TreeTable:
        """The columns that trees read."""
        own, settings = len(self.card["layout"]), self.card["settings"]
        facts = tuple((str(name), float(rest)) for name, rest in self.card.get("facts", ()))
        derived = len(self.card.get("quantities", ()))
        return TreeTable(self.card["vector"], own, tuple(settings["parts"]), derived, facts)

    @cached_property
    def _forest(self) -> Forest:
        members = [self.below(f"member.{i}.") for i in range(self.members)]
        return Forest(members, self.table.blocks)

    @property
    def _reads(self) -> int:
        """Numbers of a matrix."""
        if self.predictor == "trees":
            return self.table.vector
        if self._processes:
            return len(self.tensors[f"process.{self.ops[0]}.center.matrix"])
        return len(self.tensors["scale.center"])

    @cached_property
    def encoder(self) -> LatentEncoder:
        return from_tensors(self.card["settings"]["latent"], self.below("latent."))

    @property
    def instance(self) -> str:
        """The platform instance whose runs it learned from; empty in cards that do not say."""
        return str(self.card["platform"].get("id", ""))

    @property
    def guard(self) -> float:
        """The log gain it must promise over the default to be believed against it."""
        return float(self.card["calibration"].get("guard", 0.0))

    @cached_property
    def form(self) -> Mlp:
        """The form of its networks."""
        return form_of(self.card["settings"])

    @property
    def plain(self) -> bool:
        """True if the first five are the five best predicted, as in the papers, and not a set."""
        return bool(self.card["settings"].get("plain", False))

    def below(self, prefix: str) -> dict[str, NDArray[Any]]:
        """The tensors whose names begin so, without the prefix."""
        cut = len(prefix)
        return {n[cut:]: a for n, a in self.tensors.items() if n.startswith(prefix)}

    def mismatch(
        self, platform: Platform, op: Op, featurizer_name: str, featurizer_version: str
    ) -> str:
        """Return the reason not to use it here, in one line; empty if there is none."""
        card = self.card
        made = (card["featurizer"]["name"], card["featurizer"]["version"])
        if card["platform"]["name"] != platform.name:
            return f"trained for the platform {card['platform']['name']}, not {platform.name}"
        if "@" in self.instance and self.instance != platform.id:
            return f"trained on the runs of {self.instance}, and this is {platform.id}"
        if card["kernel"] != op.name or op.name not in platform.kernels:
            return f"trained for {card['kernel']}, not {op.name}"
        if op.dtype not in {known.dtype for known in self.ops}:
            return f"trained for {', '.join(card['ops'])}, not {op.dtype}"
        if card["platform"]["space"] != space_digest(platform, op):
            return f"trained for another space of {platform.name} {op.name} than it has now"
        if card.get("derived", "") not in ("", platform.quantities(op).digest):
            return f"trained on other derived quantities than {platform.name} {op.name} has now"
        if made != (featurizer_name, featurizer_version):
            return (
                f"trained on vectors of {made[0]} {made[1]}, "
                f"not {featurizer_name} {featurizer_version}"
            )
        return ""

    # -- scores ----------------------------------------------------------------------------

    def score(self, asked: Problem, configs: Sequence[Config]) -> tuple[Floats, Floats]:
        """Log gains float64[c] of configurations over their mean (higher is faster) and the
        standard deviations float64[c] of these; not finite where the weights are too large.

        `mismatch` says whether the question is one for this model; that is the caller's to ask.
        Raises: SpaceError for an illegal configuration, or if sizes are needed and not given;
        ModelError for a vector of another length.
        """
        if np.shape(asked.vector) != (self._reads,):
            raise ModelError(
                f"the vector has shape {np.shape(asked.vector)}, the model reads {(self._reads,)}",
                hint="it was made by another featurizer",
            )
        if not configs:
            return np.zeros(0), np.zeros(0)
        # Weights of any size may be in a file: what they overflow to is the caller's to judge.
        with np.errstate(over="ignore", invalid="ignore"):
            return self._scored(asked, configs)

    def _scored(self, asked: Problem, configs: Sequence[Config]) -> tuple[Floats, Floats]:
        fit = self.card["calibration"]
        if self._processes:
            gain, deviation = self._by_process(asked, tuple(configs))
            gain = fit["slope"] * (gain - gain.mean())
            return gain, fit["factor"] * np.hypot(deviation, fit["floor"])
        if self.predictor == "trees":
            each = self._by_trees(asked, tuple(configs))
        else:
            ready = self._prepared(asked.platform, asked.op, tuple(configs), asked.sizes)
            each = self._by_networks(asked.vector, ready, asked.op)
        each = fit["slope"] * each
        each -= each.mean(axis=1, keepdims=True)
        spread = np.sqrt(each.var(axis=0) + fit["floor"] ** 2)
        return each.mean(axis=0), fit["factor"] * spread

    def _by_process(self, asked: Problem, configs: tuple[Config, ...]) -> tuple[Floats, Floats]:
        """float64[c] log gains and their standard deviations, by the nearest width's process."""
        near = min(self.ops, key=lambda op: abs(math.log2(op.width / asked.op.width)))
        inputs = self._columns_of(asked, configs).on(asked)
        return self._processes[near].score(inputs, detailed=_DETAILED)

    def _by_trees(self, asked: Problem, configs: tuple[Config, ...]) -> Floats:
        """float64[members,c]."""
        said = None if self.source is None else self.source.score(asked, configs)[0]
        columns = self._columns_of(asked, configs)
        return self._forest.score(self.table.of(asked, configs, said, columns))

    def _columns_of(self, asked: Problem, configs: tuple[Config, ...]) -> ConfigColumns:
        """Configurations prepared for any matrix; of the last few sets they are kept."""
        key = (asked.platform.id, asked.platform.digest, asked.op, configs)
        columns = self._columns.get(key)
        if columns is None:
            columns = ConfigColumns(asked.platform, asked.op, configs)
            self._columns[key] = columns
            while len(self._columns) > _REMEMBERED:
                # Another thread may have dropped it already.
                self._columns.pop(next(iter(self._columns)), None)
        return columns

    def _by_networks(self, vector: NDArray[np.float32], ready: _Prepared, op: Op) -> Floats:
        """float64[members,c], the prior included."""
        x = problem(np.asarray(vector)[None], [op], self.below("scale."))
        if "featurizer" not in self.card["settings"]["parts"]:
            x[:, :-1] = 0
        members = enumerate(ready.members)
        each = np.array([self.form.scores(self.below(f"member.{i}."), x, m) for i, m in members])
        both: Floats = self.card["calibration"].get("trust", 1.0) * each + ready.prior
        return both

    def _prepared(
        self,
        platform: Platform,
        op: Op,
        configs: tuple[Config, ...],
        sizes: Sizes,
    ) -> _Prepared:
        settings = self.card["settings"]
        nests = nest_inputs(platform, op, configs, sizes)
        key = (platform.digest, op, configs)
        found = self._remembered.get(key)
        if found is not None and np.array_equal(found.nests, nests):
            return found
        latents = self.encoder.encode(self.form.layout(platform.kernel(op)).raw(configs))
        prior = self._prior(op, configs, nests, latents)
        seen, own = seen_parts(nests, latents, settings["parts"])
        members = [self.below(f"member.{i}.") for i in range(self.members)]
        each = tuple(self.form.prepared(weights, seen, own, settings) for weights in members)
        found = _Prepared(nests, prior, each)
        self._remembered[key] = found
        while len(self._remembered) > _REMEMBERED:
            # Another thread may have dropped it already.
            self._remembered.pop(next(iter(self._remembered)), None)
        return found

    def _prior(
        self,
        op: Op,
        configs: Sequence[Config],
        nests: NDArray[np.float32],
        latents: NDArray[np.float32],
    ) -> Floats:
        """float64[c] mean log gain; of a width it was not trained on, that of the nearest."""
        if not self.card["settings"]["residual"]:
            return np.zeros(len(configs))
        near = min(self.ops, key=lambda o: abs(math.log2(o.width / op.width)))
        held = self.below(f"prior.{near}.")
        known = {bytes(i): float(r) for i, r in zip(held["ids"], held["rest"], strict=True)}
        rest = [known.get(bytes.fromhex(c.id), 0.0) for c in configs]
        own = nests[:, :HOMOGENEOUS_DIM] @ held["nest"]
        found: Floats = own + latents @ held["latent"] + np.array(rest)
        return found

    # -- checks ----------------------------------------------------------------------------

    def _check(self) -> None:
        """Raises: ModelError or what a wrong card or tensor raises, turned to it above."""
        card, settings = self.card, self.card["settings"]
        _ = (card["kernel"], card["platform"]["name"], card["platform"]["space"])
        _ = (card["featurizer"]["name"], card["featurizer"]["version"])
        if settings["fusion"] not in FUSIONS:
            raise ModelError(f"no fusion {settings['fusion']!r}")
        process = self.predictor == "gp"
        trees = self.predictor == "trees" and not settings.get("every")
        if not trees and not process:
            _ = self.form
        if not set(settings["parts"]) <= set(PARTS):
            raise ModelError(f"no parts {settings['parts']!r}")
        if wrong := calibration_problem(card["calibration"]):
            raise ModelError(wrong)
        members = settings["members"]
        if type(members) is not int or not 1 <= members <= _MOST_MEMBERS or not self.ops:
            raise ModelError("it has no members or no ops")
        for name, array in self.tensors.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise ModelError(f"tensor {name!r} is not finite")
        if process:
            if "source" in card:
                raise ModelError("it corrects another model, which is no longer done")
            below = {op: self.below(f"process.{op}.") for op in self.ops}
            self._processes = {op: GaussianProcess(tensors) for op, tensors in below.items()}
        elif trees:
            self._check_trees()
        else:
            self._check_networks()

    def _check_trees(self) -> None:
        """Reads the trees and their source, which checks them."""
        d, names = self.card["vector"], self.card["layout"]
        if type(d) is not int or not 0 < d <= _MOST_COLUMNS or not isinstance(names, list):
            raise ModelError("its card does not say what the trees read")
        if self.table.width > _MOST_COLUMNS:
            raise ModelError(f"its trees read more than {_MOST_COLUMNS} numbers")
        _ = self._forest
        self._check_source(d)

    def _check_source(self, d: int) -> None:
        """Reads the model whose predictions this one reads, of the same kernel and d numbers."""
        card = self.card
        if "source" not in card:
            return
        if "source" in card["source"]:
            raise ModelError("its source has a source itself")
        self.source = CostModel(card["source"], self.below("source."))
        if self.source.card["kernel"] != card["kernel"] or self.source._reads != d:
            raise ModelError("its source is a model of another kernel or featurizer")

    def _check_networks(self) -> None:
        """Every tensor is there and has its shape."""
        settings = self.card["settings"]
        d, e = len(self.tensors["scale.center"]), self.encoder.dim
        wanted: dict[str, tuple[int, ...]] = {"scale.center": (d,), "scale.scale": (d,)}
        for op in self.ops if settings["residual"] else ():
            k = len(self.tensors[f"prior.{op}.ids"])
            wanted |= {f"prior.{op}.nest": (HOMOGENEOUS_DIM,), f"prior.{op}.latent": (e,)}
            wanted |= {f"prior.{op}.ids": (k, 16), f"prior.{op}.rest": (k,)}
        shapes = self.form.shapes(d, e, settings)
        for i in range(self.members):
            wanted |= {f"member.{i}.{name}": s for name, s in shapes.items()}
        for name, shape in wanted.items():
            if self.tensors[name].shape != shape:
                raise ModelError(
                    f"tensor {name!r} has shape {self.tensors[name].shape}, not {shape}"
                )
