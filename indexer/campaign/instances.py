"""Whose times a campaign's folder holds.

`measured-on.json` names the instance that came first; others are refused. Where nodes of several
kinds may work, each further instance has its file in `measured-on/`, and what it measured stays
evidence of itself.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec

from embeddb.core.errors import InputError
from embeddb.core.files.gate import reason_of
from embeddb.core.files.own_files import OwnFolder, write_new
from embeddb.platforms.machines import same_build
from embeddb.platforms.platform import Platform, parse_platform
from indexer.campaign.plan import Plan

__all__ = ["Instances"]

_FILE, _FOLDER, _MOST_BYTES = "measured-on.json", "measured-on", 1 << 20


class _Machine(msgspec.Struct):
    platform: str
    environment: dict[str, str] = {}


class Instances:
    """The instances of one campaign."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._folder, self._plan = folder, plan
        self._own, self._further = OwnFolder(folder), OwnFolder(folder, _FOLDER)
        self._platforms: dict[str, Platform] = {}

    @property
    def first(self) -> str:
        """The id of the one that came first; empty before any. Raises: InputError."""
        there = os.path.lexists(self._folder / _FILE)
        return self._read(self._own, _FILE).platform if there else ""

    def admit(self, here: Platform, *, mixed: bool = False) -> None:
        """Note that an instance's times are in the folder; with `mixed` beside those of others.

        Raises: InputError if they may not be: the folder's are of another instance, or of another
        platform than was planned.
        """
        planned = parse_platform(self._plan.platform)
        if (here.name, here.digest) != (planned.name, planned.digest):
            raise InputError(
                f"planned for {planned.name}, and not as {here.name} is here",
                where=str(self._folder),
                hint="plan the campaign anew",
            )
        about = {"platform": here.id, "environment": dict(here.environment)}
        body = json.dumps(about, indent=1).encode()
        if not os.path.lexists(self._folder / _FILE) and write_new(self._own, _FILE, body):
            return
        first = self._read(self._own, _FILE)
        if first.platform == here.id or same_build(first.environment, here.environment):
            return
        if mixed:
            write_new(self._further, f"{here.id}.json", body)
            return
        raise InputError(
            f"its results are of {first.platform}, and this is {here.id}",
            where=str(self._folder),
            hint="finish it there with the same threads, or plan a campaign in another folder; "
            "the runs it has stay evidence of their machine",
        )

    def platform(self, name: str) -> Platform:
        """The planned platform as the instance of that id is.

        Raises: InputError if the folder says nothing of it.
        """
        if name in self._platforms:
            return self._platforms[name]
        found = self._read(self._own, _FILE)
        if found.platform != name:
            found = self._read(self._further, f"{name}.json")
        planned = parse_platform(self._plan.platform)
        base, _, instance = name.partition("@")
        if found.platform != name or base != planned.name:
            raise InputError(f"does not tell of {name}", where=str(self._folder))
        self._platforms[name] = planned.at(instance, found.environment)
        return self._platforms[name]

    def _read(self, folder: OwnFolder, file: str) -> _Machine:
        try:
            return msgspec.json.decode(folder.read(file, _MOST_BYTES), type=_Machine)
        except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as e:
            where = str(folder.path / file)
            raise InputError(f"does not name a machine: {reason_of(e)}", where=where) from None
