"""`plot training`: the figures of a training by epoch."""

from __future__ import annotations

from pathlib import Path

import click

from embeddb.core.wording import plural
from embeddb.ui.cli.drawing import finish, out_option
from embeddb.ui.cli.output import json_option
from embeddb.ui.plot_data import figures

__all__ = ["training_verb"]

#: Where a figure of a training belongs by the end of its name; all else is a loss.
_ORDERS = ("opa", "tau")
_NOT_DRAWN = {"epoch", "seconds", "epochs_left"}


@click.command("training")
@click.argument("curve")
@out_option
@json_option
def training_verb(curve: str, out: Path, as_json: bool) -> None:
    """Draw CURVE, the curve.jsonl of a training, also of one that still runs.

    Losses (with PRL, the pairwise ranking loss) above, how well pairs are ordered (OPA, Kendall's
    tau) below; the epoch with the smallest validation loss is marked.

    \b
    Example:
      embeddb plot training scnn.training/curve.jsonl -o curve.svg
    """
    from embeddb.ui.draw import curves, stack
    from indexer.training.curves import read_curve

    epochs = read_curve(Path(curve))
    names = dict.fromkeys(n for line in epochs for n in line if n not in _NOT_DRAWN)
    orders = [name for name in names if name.endswith(_ORDERS)]
    losses = [name for name in names if name not in orders]
    drawn = [figures(epochs, held) for held in (losses, orders)]
    panels = [
        curves(
            lines,
            title=f"{label} by epoch",
            x_label="epoch",
            y_label=label,
            log_y=label == "loss" and all(y > 0 for line in lines for y in line.y),
            height=280,
            key=label,
        )
        for label, lines in zip(("loss", "order of pairs"), drawn, strict=True)
        if lines
    ]
    title = f"training: {plural(len(epochs), 'epoch')}"
    svg = stack(panels or [curves([], title=title, x_label="", y_label="")], title=title)
    finish(svg, out, {"title": title, "figures": [*losses, *orders]}, as_json)
