"""The fastest of many that ran once is run again before it is believed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from played_xla import HERE, Played, PlayedModel, chain, crowded_s

from embeddb.core.records import Measurement
from embeddb.database import Database
from embeddb.tensors.edges import Cut
from embeddb.tensors.tensor_graph import TensorGraph
from tuners.fusion_cuts import Tried
from tuners.tune_fusion import MOST_AGAIN, FusionTuning, TuneRequest, settled

#: Cuts by the kernels that they are made of, one of which was timed too short at first.
PARTS = {
    Cut((True, False)): ["lucky", "a"],
    Cut((False, True)): ["lucky", "b"],
    Cut((True, True)): ["c", "d"],
    Cut((False, False)): ["e"],
}
TRUE = {"lucky": 5.0, "a": 1.0, "b": 1.1, "c": 2.0, "d": 2.0, "e": 4.5}


def asked(first: dict[str, float]) -> tuple[Cut | None, list[Cut]]:
    told = {name: [seconds] for name, seconds in first.items()}
    ran: list[Cut] = []

    def again(cut: Cut) -> None:
        ran.append(cut)
        for name in PARTS[cut]:
            told[name].append(TRUE[name])

    tried = [Tried(cut, seconds=sum(first[n] for n in names)) for cut, names in PARTS.items()]
    return settled(tried, PARTS.__getitem__, told.__getitem__, again), ran


def test_what_stays_the_fastest_runs_again_once() -> None:
    assert asked(TRUE) == (Cut((True, True)), [Cut((True, True))])


def test_a_kernel_that_was_lucky_is_corrected_in_all_cuts_that_have_it() -> None:
    found, ran = asked({**TRUE, "lucky": 1.0})
    assert found == Cut((True, True)) and ran == [Cut((True, False)), Cut((True, True))]


def test_nothing_ran() -> None:
    assert settled([], PARTS.__getitem__, TRUE.__getitem__, lambda _: None) is None  # type: ignore[arg-type,return-value]  # never asked


def test_it_ends() -> None:
    """Where every timing is worse than the one before."""
    cuts = {Cut((bool(at & 1), bool(at & 2), bool(at & 4))): [str(at)] for at in range(8)}
    told = {str(at): [1.0 + at / 100] for at in range(8)}
    ran: list[Cut] = []

    def again(cut: Cut) -> None:
        ran.append(cut)
        told[cuts[cut][0]].append(10.0)

    tried = [Tried(cut, seconds=told[names[0]][0]) for cut, names in cuts.items()]
    assert settled(tried, cuts.__getitem__, told.__getitem__, again) == ran[0]
    assert len(ran) == len(set(ran)) == MOST_AGAIN


class Lucky(Played):
    """Kernels of three operations or more are timed ten times too short, the first time."""

    def one(self, kernel: TensorGraph) -> Measurement:
        new = kernel.id not in self.timed
        found = super().one(kernel)
        if not new or len(kernel.operations) < 4:
            return found
        return Measurement(times_s=(found.times_s[0] / 10,), when=found.when)


@pytest.fixture
def db() -> Iterator[Database]:
    with Database.in_memory() as made:
        yield made


class Quicker(Played):
    """Single operations take half as long each time that they are timed."""

    def one(self, kernel: TensorGraph) -> Measurement:
        times, found = self.timed.count(kernel.id), super().one(kernel)
        single = len(kernel.operations) < 3
        return Measurement(times_s=(found.times_s[0] / 2 ** (times * single),), when=found.when)


def test_what_rounds_say_does_not_change_a_tuning_that_is_done(db: Database) -> None:
    request = TuneRequest(model_s=0.3, hardware_s=1e9)
    first, again = Quicker(crowded_s), Quicker(crowded_s)
    done, same = (
        FusionTuning(db.index, runner, HERE, request, chain(5), model=PlayedModel(crowded_s)).run()
        for runner in (first, again)
    )
    assert first.timed and not again.timed
    assert (same.settled, same.gain) == (done.settled, done.gain)
    assert [one.cut for one in same.again] == [one.cut for one in done.again]


def test_tuning_answers_what_holds(db: Database) -> None:
    request = TuneRequest(model_s=0.3, hardware_s=1e9)
    done = FusionTuning(
        db.index, Lucky(crowded_s), HERE, request, chain(5), model=PlayedModel(crowded_s)
    ).run()
    assert done.best is not None and done.settled == done.best.cut
    fastest = min(done.ran, key=lambda one: one.seconds)
    assert len(done.again) > 1 and done.again[0].cut == fastest.cut != done.best.cut
    assert done.again[0].seconds > fastest.seconds
