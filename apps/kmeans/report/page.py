"""The page on a clustering: one HTML file that needs no other."""

from collections.abc import Mapping, Sequence
from math import isqrt
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from tsapps.apps.kmeans.report import pictures
from tsapps.apps.kmeans.report.facts import ReportFacts

__all__ = ["page_of"]

# Most columns and clusters of the table of centers, and most images.
_MOST_COLUMNS, _MOST_CLUSTERS, _MOST_IMAGES = 40, 30, 100
# Least number of columns that may be the pixels of a square image.
_LEAST_PIXELS = 64
_SCORES = {
    "k": "k",
    "inertia": "inertia",
    "silhouette": "silhouette",
    "silhouette_error": "± (95 %)",
    "simplified_silhouette": "simplified silhouette",
    "calinski_harabasz": "Calinski–Harabasz",
    "davies_bouldin": "Davies–Bouldin",
}
# Columns of a sweep with the gap statistic.
_GAPS = {"gap": "gap", "gap_error": "± (standard error)"}


def page_of(summary: Mapping[str, Any], facts: ReportFacts, centers: np.ndarray, names: Sequence[str] | None) -> str:
    """Return the page as HTML.

    Parameters
    ----------
    summary : mapping
        Keys of summary.json of ``tsapps kmeans``; "n", "d", "k", "inertia" and "iterations" are needed.
    facts : ReportFacts
    centers : numpy.ndarray of shape (k, d)
        In the units of the data.
    names : sequence of str or None
        Names of the columns.
    """
    environment = Environment(
        loader=PackageLoader("tsapps.apps.kmeans.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    data = str(summary.get("input") or "an array").rpartition("/")[2]
    return environment.get_template("page.html.j2").render(
        title=f"{summary['k']} clusters of {data}",
        colors=pictures.COLORS,
        summary=_summary(summary, facts),
        pictures=_pictures(summary, facts),
        images=_images(centers, names),
        centers=_centers(facts, centers, names),
        sweep=_sweep(summary),
        command=summary.get("command"),
        versions=sorted((summary.get("versions") or {}).items()),
    )


def _summary(summary: Mapping[str, Any], facts: ReportFacts) -> list[tuple[str, str]]:
    scores, found = facts.scores, [("data", f"{summary['n']:,} rows × {summary['d']:,} columns")]
    if summary.get("left_out"):
        found.append(("left out", ", ".join(summary["left_out"])))
    missing, scale = summary.get("missing") or {}, summary.get("scale") or {}
    if missing.get("how", "error") != "error":
        found.append(("missing values", f"{missing['how']}; {missing['rows_dropped']:,} rows dropped"))
    if scale.get("how", "none") != "none":
        found.append(("scale", scale["how"]))
    ended = "" if summary.get("converged", True) else ", not converged"
    found += [
        ("clusters", f"{summary['k']:,}, of {facts.sizes.min():,} to {facts.sizes.max():,} rows"),
        ("inertia", f"{summary['inertia']:.6g} after {summary['iterations']:,} iterations{ended}"),
    ]
    if not np.isnan(scores.silhouette):
        error = f" ± {scores.silhouette_error:.3f} (95 %)" if scores.silhouette_error else ""
        found += [
            ("silhouette", f"{scores.silhouette:.3f}{error}; simplified {scores.simplified_silhouette:.3f}"),
            ("Calinski–Harabasz", f"{scores.calinski_harabasz:.6g}"),
            ("Davies–Bouldin", f"{scores.davies_bouldin:.4g}"),
        ]
    if summary.get("device"):
        found.append(("device", f"{summary['device']}: {summary['device_reason']}"))
    return found


def _pictures(summary: Mapping[str, Any], facts: ReportFacts) -> list[tuple[str, str, str]]:
    """Return captions, pictures and notes."""
    k = len(facts.sizes)
    found = [("Sizes", pictures.sizes(facts.sizes.tolist()), "")]
    if not np.isnan(facts.scores.silhouette):
        note = (
            "Near 1: far from other clusters. Near 0: between two. Negative: nearer to another cluster. Exact for "
            f"{len(facts.sample_labels):,} rows."
        )
        found.append(("Silhouettes", pictures.silhouettes(facts.scores.of_sample, facts.sample_labels, k), note))
    note = f"{len(facts.points):,} rows and the centers. Clusters that overlap here may be apart in other directions."
    drawn = pictures.scatter(facts.points, facts.point_labels, facts.centers, facts.shares)
    found.append(("Principal axes", drawn, note))
    history = summary.get("history") or []
    if len(history) > 1:
        points = [
            (float(number), float(one["inertia"])) for number, one in enumerate(history, start=history[0]["iteration"])
        ]
        found.append(("Convergence", pictures.curve("Inertia by iteration", points, ("iteration", "inertia")), ""))
    seconds = [(name, float(value)) for name, value in (summary.get("seconds") or {}).items() if name != "total"]
    if seconds:
        found.append(("Where time went", pictures.shares(seconds), ""))
    return found


def _centers(facts: ReportFacts, centers: np.ndarray, names: Sequence[str] | None) -> dict[str, Any]:
    """Return the table of centers: the columns that tell clusters apart come first."""
    order = np.argsort(-facts.separation, kind="stable")[:_MOST_COLUMNS]
    clusters = np.sort(np.argsort(-facts.sizes, kind="stable")[:_MOST_CLUSTERS])
    means = (facts.sizes[:, None] * centers).sum(axis=0) / max(1, facts.sizes.sum())
    between = np.sqrt((facts.sizes[:, None] * (centers - means) ** 2).sum(axis=0) / max(1, facts.sizes.sum()))
    apart = np.divide(centers - means, between, out=np.zeros_like(centers), where=between > 0)
    rows = [
        {
            "name": str(column) if names is None else names[column],
            "separation": f"{facts.separation[column]:.0%}",
            "cells": [_cell(centers[cluster, column], apart[cluster, column]) for cluster in clusters.tolist()],
        }
        for column in order.tolist()
    ]
    note = (
        "Separation is the share of a column's variance that lies between clusters. Colors: below and above the mean "
        "of all rows."
    )
    if len(order) < len(facts.separation):
        note += f" {len(order)} of {len(facts.separation):,} columns: those that tell clusters apart."
    if len(clusters) < len(facts.sizes):
        note += f" The {len(clusters)} largest of {len(facts.sizes):,} clusters."
    return {"rows": rows, "clusters": clusters.tolist(), "note": note}


def _cell(value: float, apart: float) -> dict[str, str]:
    side = "low" if apart < 0 else "high"
    return {"text": f"{value:.4g}", "side": side, "strength": f"{min(abs(apart) / 2, 1) * 0.45:.2f}"}


def _images(centers: np.ndarray, names: Sequence[str] | None) -> list[str]:
    """Return centers as images if their columns may be pixels: many, a square number, without names of their own."""
    d = centers.shape[1]
    side = isqrt(d)
    plain = names is None or all(name.lower().startswith(("pixel", "px")) or name.isdecimal() for name in names)
    if side * side != d or d < _LEAST_PIXELS or not plain:
        return []
    low, high = float(centers.min()), float(centers.max())
    return [pictures.image(center.reshape(side, side), low, high) for center in centers[:_MOST_IMAGES]]


def _sweep(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    sweep = summary.get("sweep")
    if not sweep:
        return None
    scores, drawn = sweep["scores"], []
    columns = _SCORES | (_GAPS if sweep.get("references") else {})
    for key in ("silhouette", "inertia", "gap"):
        points = [(float(one["k"]), float(one[key])) for one in scores if key in columns and one[key] is not None]
        if len(points) > 1:
            name = columns[key]
            picture = pictures.curve(f"{name} by k", points, ("k", name), mark=float(summary["k"]))
            drawn.append((name.capitalize(), picture))
    rows = [[_number(one[key]) for key in columns] for one in scores]
    reason = f"k = {summary['k']}: {sweep['reason']}"
    return {"reason": reason, "pictures": drawn, "headings": list(columns.values()), "rows": rows}


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.5g}"
