"""Explanations by hand for tests of pages: everything there is, nothing there is, and hostile."""

from __future__ import annotations

from typing import Any

import msgspec

from embeddb.explain import (
    Agreement,
    Difference,
    Explanation,
    NeighbourEvidence,
    OwnRuns,
    PatternView,
)
from embeddb.insight import Effect, Insight, Move, NextRun, SimplerAnswer
from embeddb.query import Candidate

DEFAULT: dict[str, Any] = {"order": "ijk", "tile": 8}
ANSWER: dict[str, Any] = {"order": "ik1jk0", "tile": 64}
OTHER: dict[str, Any] = {"order": "ik1jk0", "tile": 32}
THUMBNAIL = bytes((7 * i) % 256 if i % 33 < 3 else 0 for i in range(1024))
#: What a stranger may call a matrix.
HOSTILE = (
    "<script>alert(1)</script>",
    "</style></title><img src=x onerror=alert(1)>",
    "evil\u202egnp.exe\u2066\u200f",
    "\"quotes\" 'and' {{ 7 * 7 }} &amp; ]]>",
    "nul\x00bell\x07escape\x1b[31m",
    "half\ud800 a character",
    "x" * 10_000,
)


def insight(*, deep: bool = True) -> Insight:
    made = Insight(
        simpler=[
            SimplerAnswer(method="default", config=DEFAULT, expected_gain=1.0),
            SimplerAnswer(method="static-best", config=OTHER, expected_gain=1.4),
            SimplerAnswer(method="transfer", config=ANSWER, expected_gain=1.8, same=True),
        ],
        next=[NextRun(config=OTHER, expected_gain=1.7, gain_high=2.9, worth=0.021)],
    )
    if not deep:
        return made
    effects = [
        Effect(parameter="tile", value=str(v), configs=9, best_gain=g, median_gain=g - 0.2)
        for v, g in ((8, 1.1), (32, 1.6), (64, 1.8))
    ] + [
        Effect(parameter="order", value=v, configs=9, best_gain=1.8, median_gain=1.2)
        for v in ("ijk", "ik1jk0")
    ]
    move = Move(feature="row_mean", start=3.0, end=9.5, deviations=1.25, winner=OTHER)
    return msgspec.structs.replace(
        made,
        deep=True,
        effects=effects,
        moves=[move],
        attention=[0.01 * i for i in range(64)],
        attention_side=8,
    )


def neighbour(at: int, name: str = "") -> NeighbourEvidence:
    return NeighbourEvidence(
        pattern_id=f"{at:032x}",
        name=name or f"near{at}",
        platform="tiny",
        distance=1.5 + at,
        percentile=0.3 + 0.1 * at,
        weight=1.0 / (1 + at),
        measured=40,
        failed={"crash": 2} if at else {},
        best=OTHER if at else ANSWER,
        best_gain=2.5,
        answer_gain=None if at == 2 else 2.1,
        group="family",
        m=1000,
        n=900,
        nnz=12_345,
        thumbnail=THUMBNAIL,
        ratios=[1.0 + 0.1 * i for i in range(30)],
        default_at=20,
        answer_at=None if at == 2 else 4,
    )


def candidates(*, measured: bool) -> list[Candidate]:
    seconds = (1.0e-3, 1.1e-3, None) if measured else (None, None, None)
    status = ("ok", "ok", "oom") if measured else (None, None, None)
    return [
        Candidate(
            config=config,
            score=-0.5 + 0.1 * at,
            origin="3 neighbours",
            expected_gain=1.8 - 0.1 * at,
            gain_low=1.2,
            gain_high=2.4,
            voters=3,
            seconds=seconds[at],
            status=status[at],
        )
        for at, config in enumerate((ANSWER, OTHER, DEFAULT))
    ]


def full(*, measured: bool = True, deep: bool = True, name: str = "asked") -> Explanation:
    """An explanation with something in every part."""
    return Explanation(
        id="r0123456789ab",
        pattern_id="f" * 32,
        pattern_name=name,
        platform="tiny@here",
        op="spmm:32",
        link="neighbours",
        answer=ANSWER,
        expected_gain=1.8,
        measured_gain=1.9 if measured else None,
        within_interval=True if measured else None,
        confidence="medium",
        neighbours=[neighbour(at) for at in range(3)],
        differences=[Difference(feature="row_mean", query=3.0, neighbours=7.25, deviations=-1.75)],
        agreement=[
            Agreement(parameter="order", votes={"ik1jk0": 1.0}, answer="ik1jk0", open=False),
            Agreement(parameter="tile", votes={"64": 0.6, "32": 0.4}, answer="64", open=True),
        ],
        evidence={"crash": 2, "ok": 118},
        near_ties=[OTHER],
        rejected={"order=x,tile=8": "tile=8, NNZ=3: breaks the constraint tile < NNZ"},
        warnings=["the nearest measured pattern is unusually far"],
        simulated=True,
        tuner="transfer",
        featurizer="stats",
        model="0123456789abcdef",
        model_featurizer="stats",
        candidates=candidates(measured=measured),
        default=DEFAULT,
        default_seconds=1.9e-3 if measured else None,
        created=1.8e9,
        generation=7,
        evidence_op="spmm:64",
        pattern=PatternView(
            id="f" * 32,
            name=name,
            group="family",
            m=1200,
            n=1100,
            nnz=9000,
            features={"row_mean": 3.0, "density": 0.0068},
            thumbnail=THUMBNAIL,
        ),
        novelty="like what was measured: 60 % of the measured patterns have a nearer neighbour",
        insight=insight(deep=deep),
        own=[own(ANSWER), own(DEFAULT)] if measured else [],
        noise=0.02,
        runnable=True,
    )


def own(config: dict[str, Any]) -> OwnRuns:
    return OwnRuns(
        config=config,
        runs=3,
        times=15,
        seconds=1.0e-3,
        fastest=0.9e-3,
        slowest=1.2e-3,
        first=86400.0,
        last=3 * 86400.0,
        sources=["hardware"],
    )


def bare() -> Explanation:
    """The default for want of evidence: most of the parts are empty."""
    return Explanation(
        id="r0",
        pattern_id="e" * 32,
        pattern_name="",
        platform="tiny",
        op="spmv",
        link="default",
        answer=DEFAULT,
        expected_gain=None,
        measured_gain=None,
        confidence="low",
        neighbours=[],
        differences=[],
        agreement=[],
        evidence={},
        near_ties=[],
        rejected={},
        warnings=[],
        simulated=False,
        default=DEFAULT,
    )


def hostile(text: str) -> Explanation:
    """`text` wherever a stranger has a say."""
    e = full(name=text)
    config = {**ANSWER, "order": text} if "\ud800" not in text else ANSWER
    return msgspec.structs.replace(
        e,
        id=text,
        platform=text,
        answer=config,
        candidates=[msgspec.structs.replace(c, config=config, origin=text) for c in e.candidates],
        neighbours=[
            msgspec.structs.replace(n, name=text, group=text, best=config, failed={text: 3})
            for n in e.neighbours
        ],
        differences=[msgspec.structs.replace(d, feature=text) for d in e.differences],
        agreement=[
            msgspec.structs.replace(a, parameter=text, votes={text: 0.5, "b": 0.5}, answer=text)
            for a in e.agreement
        ],
        rejected={text: text},
        warnings=[text],
        novelty=text,
        tuner=text,
        evidence={text: 4},
        insight=msgspec.structs.replace(
            e.insight,
            simpler=[msgspec.structs.replace(s, method=text) for s in e.insight.simpler],
            effects=[
                msgspec.structs.replace(x, parameter=text, value=text) for x in e.insight.effects
            ],
            moves=[
                msgspec.structs.replace(m, feature=text, winner=config) for m in e.insight.moves
            ],
        ),
        pattern=msgspec.structs.replace(e.pattern, group=text, features={text: 1.0}),
    )
