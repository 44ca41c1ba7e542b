"""How unlike two machines are, by what is known of them: the facts in an instance's environment.

A fact is a text in the environment of a platform's instance. What every runner tells (threads,
compiler, flags) is one, and what a probe measured is one. Instances of older databases lack most:
only what both tell is compared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from embeddb.core.sizes import positive

Facts = Mapping[str, str]

#: What a doubling of a number counts, by fact. Vector width and threads decide which schedule
#: wins; bandwidths move all schedules more than one against the other.
_DOUBLINGS = {
    "vector_bytes": 1.0,
    "threads": 1.0,
    "multiprocessors": 0.25,
    "copy_gb_s": 0.1,
    "l2_bytes": 0.25,
    "l3_bytes": 0.1,
    "stream_l1_gb_s": 0.1,
    "stream_l2_gb_s": 0.1,
    "stream_l3_gb_s": 0.1,
    "stream_memory_gb_s": 0.1,
    "multiply_add_gflop_s": 0.1,
    "gather_l2_m_s": 0.1,
    "gather_memory_m_s": 0.1,
    "wake_us": 0.1,
}
#: What another word counts, by fact. In the runs of others the gains of a GPU and a CPU, or of one
#: thread and many, differ by a variance of 0.12 to 0.2, those of one backend by 0.05.
_OTHERS = {"backend": 5.0, "cpu": 0.25, "gpu": 0.25, "compiler": 0.25, "kernels": 0.25}
#: Programs that run another one: which of them the PATH names is no fact of a simulator.
_INTERPRETER = re.compile(
    r"(python|pypy|perl|ruby|node|julia|java|lua|luajit|Rscript|tclsh|bash|dash|zsh|ksh|sh|env)"
    r"w?[\d.]*(\.exe)?"
)
#: Machines that tell nothing of one another.
_UNKNOWN = 1.0
#: Facts in words and their unit, in the order they are told.
_WORDS = {
    "cpu": ("processor", ""),
    "gpu": ("GPU", ""),
    "capability": ("compute capability", ""),
    "driver": ("CUDA version of the driver", ""),
    "toolkit": ("CUDA toolkit", ""),
    "threads": ("threads", ""),
    "processors": ("processors of the machine", ""),
    "compiler": ("compiler", ""),
    "flags": ("compiler's flags", ""),
    "kernels": ("generation of the kernels", ""),
    "wait_policy": ("threads wait", ""),
    "proc_bind": ("threads bound to processors", ""),
    "vector_bytes": ("vector registers", "bytes"),
    "l1_bytes": ("first level data cache", "bytes"),
    "l2_bytes": ("second level cache", "bytes"),
    "l3_bytes": ("third level cache", "bytes"),
    "stream_l1_gb_s": ("streams 24 kB a thread", "GB/s"),
    "stream_l2_gb_s": ("streams 384 kB a thread", "GB/s"),
    "stream_l3_gb_s": ("streams 6 MB a thread", "GB/s"),
    "stream_memory_gb_s": ("streams 96 MB a thread", "GB/s"),
    "multiply_add_gflop_s": ("multiplies and adds, one thread", "GFLOP/s"),
    "gather_l2_m_s": ("gathers from 256 kB, one thread", "million/s"),
    "gather_memory_m_s": ("gathers from 64 MB, one thread", "million/s"),
    "wake_us": ("wakes its threads", "microseconds"),
    "multiprocessors": ("multiprocessors", ""),
    "memory_bytes": ("memory", "bytes"),
    "copy_gb_s": ("copies 1 GiB, reads and writes", "GB/s"),
    "launch_us": ("launches a kernel", "microseconds"),
    "graph_launch_us": ("launches a kernel in a graph", "microseconds"),
}
#: Server generations of family 6 by model.
_INTEL = {85: "Skylake-SP", 106: "Ice Lake-SP", 143: "Sapphire Rapids", 207: "Emerald Rapids"}
_LEVELS = {"x86-64": 16, "x86-64-v2": 16, "x86-64-v3": 32, "x86-64-v4": 64}


def fact_names() -> tuple[str, ...]:
    """The facts that count, the heaviest first."""
    both = {**_DOUBLINGS, **_OTHERS}
    return tuple(sorted(both, key=lambda name: -both[name]))


def is_interpreter(program: str) -> bool:
    """Whether a program of this file name runs scripts that are its arguments."""
    return _INTERPRETER.fullmatch(program) is not None


def same_build(a: Facts, b: Facts) -> bool:
    """Whether two environments of a command differ in nothing but the content of interpreters,
    which older versions counted as part of the program."""
    own = _without_interpreters(a)
    return "program" in a and own == _without_interpreters(b)


def _without_interpreters(facts: Facts) -> dict[str, str]:
    files = facts.get("program", "").split()
    own = [file for file in files if not is_interpreter(file.partition(":")[0])]
    return {**facts, "program": " ".join(own or files)}


def same_machine(one: str, other: str, facts: Mapping[str, Facts]) -> bool:
    """Whether two platform instances are builds for one processor, as far as their facts tell:
    another compiler or number of threads is another instance, but no other machine."""
    mine, theirs = (facts.get(name, {}).get("cpu", "") for name in (one, other))
    return one == other or (mine != "" and mine == theirs)


def machine_words(facts: Facts) -> str:
    """Processor, compiler and threads of an instance, as far as its environment tells them; of a
    GPU its name and the toolkit."""
    if facts.get("gpu"):
        return ", ".join(_gpu(facts))
    told = [facts.get(name, "") for name in ("cpu", "compiler")]
    if threads := facts.get("threads"):
        told.append(f"{threads} {'thread' if threads == '1' else 'threads'}")
    march = [f for f in facts.get("flags", "").split() if f.startswith("-march=")]
    return ", ".join([t for t in told if t] + march)


def display_name(platform_id: str, facts: Facts) -> str:
    """A platform instance for people: `cpu: AMD Zen 5, 2 threads, gcc 12`, `cuda: NVIDIA H200,
    CUDA 13.0`; its id where its environment names no processor. Two instances may share a name, so
    pages keep the id beside."""
    if facts.get("gpu"):
        return f"{platform_id.partition('@')[0]}: {', '.join(_gpu(facts))}"
    if not facts.get("cpu"):
        return platform_id
    parts = [_processor(facts["cpu"])]
    if threads := facts.get("threads"):
        parts.append(f"{threads} {'thread' if threads == '1' else 'threads'}")
    if facts.get("compiler"):
        parts.append(_compiler(facts["compiler"]))
    march = re.search(r"-march=(\S+)", facts.get("flags", ""))
    if march and march[1] != "native":
        parts.append(march[1])
    return f"{platform_id.partition('@')[0]}: {', '.join(parts)}"


def _gpu(facts: Facts) -> list[str]:
    toolkit = facts.get("toolkit")
    return [facts["gpu"], *([f"CUDA {toolkit}"] if toolkit else [])]


def _processor(text: str) -> str:
    """Maker and generation where family and model tell it, else the name without its trimmings."""
    name, _, numbers = text.partition(" (")
    found = re.match(r"(\d+)/(\d+)/", numbers)
    if found is not None:
        family, model = int(found[1]), int(found[2])
        if text.startswith("AMD") and (zen := _zen(family, model)):
            return f"AMD Zen {zen}"
        if text.startswith("Intel") and family == 6 and model in _INTEL:
            return f"Intel {_INTEL[model]}"
        text = name
    return re.sub(r"\((R|TM)\)| Processor| CPU| @ .*", "", text).strip() or text


def _zen(family: int, model: int) -> int:
    """0 where it is none that is known."""
    if family == 25:
        return 4 if 16 <= model < 32 or 96 <= model < 128 or model >= 160 else 3
    return {23: 1 if model < 48 else 2, 26: 5}.get(family, 0)


def _compiler(text: str) -> str:
    """`gcc 12`, `clang 14`; the text itself where no version is found in it."""
    version = re.search(r"(\d+)\.\d+(?:\.\d+)?\s*$", text) or re.search(r"(\d+)\.\d+", text)
    name = next((known for known in ("clang", "gcc") if known in text.lower()), "")
    return f"{name} {version[1]}" if name and version else text


def described(facts: Facts) -> list[tuple[str, str]]:
    """An environment for people: what each fact is in words, and its value with its unit. Facts
    that nobody here knows follow under their own name."""
    known = [(_WORDS[n][0], _with_unit(facts[n], _WORDS[n][1])) for n in _WORDS if n in facts]
    return known + [(name, text) for name, text in facts.items() if name not in _WORDS]


def _with_unit(text: str, unit: str) -> str:
    value = positive(text)
    if not unit or value is None:
        return text
    for scale, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if unit == "bytes" and value >= scale:
            return f"{value / scale:.4g} {name}"
    return f"{value:g} {unit}"


def unlike(one: Facts, other: Facts) -> float:
    """0 for machines that agree in all they both tell; a twofold vector width or number of threads
    counts 1. Symmetric. 1 where they have no fact in common."""
    one, other = _known(one), _known(other)
    shared = one.keys() & other.keys()
    far = sum(
        weight * abs(math.log2(first / second))
        for name, weight in _DOUBLINGS.items()
        if name in shared
        and (first := positive(one[name])) is not None
        and (second := positive(other[name])) is not None
    )
    far += sum(w for name, w in _OTHERS.items() if name in shared and one[name] != other[name])
    return far if shared & {*_DOUBLINGS, *_OTHERS} else _UNKNOWN


def _known(facts: Facts) -> dict[str, str]:
    """With the vector width that the flags name, and the compiler without its version."""
    found = dict(facts)
    march = re.search(r"-march=(\S+)", facts.get("flags", ""))
    if march and march[1] in _LEVELS:
        found["vector_bytes"] = str(_LEVELS[march[1]])
    if "compiler" in facts:
        found["compiler"] = "clang" if "clang" in facts["compiler"] else facts["compiler"][:3]
    return found
