"""``specpilot compare --data``: acceptance, calibration and replayed lengths of a dataset, and its drift from another.

Nothing is generated, and the target is not needed. Acceptance data has a label at every position, so that lengths can
be replayed: whether a token is kept is drawn with its label, and after a rejected token the draft is taken to go on
with the confidences that it has along the text. Rounds hold what was drafted up to the first rejected token, and tell
what was decoded. Pure functions from :class:`.Labelled` to a report of JSON values, and from that to sentences and
tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.errors import InputError
from ..controllers.checkpoints.card import shortcomings
from ..controllers.length import CumulativeConfidence, Fixed, LengthController, RateOptimal
from ..controllers.length.cost_model import CostModel
from ..infer.random_source import drawn_for
from ..simulate.replay import PrecomputedPredictor, replay
from ..simulate.trace import END, Trace
from ..train.calibration import measured
from .comparison import CONFIDENCE as CONFIDENCE_RULE
from .comparison import CONFIDENCES, FIXED, LENGTHS, crossed, tuned
from .drift import Sums, drifts, mean_interval, sums_of
from .interval import ENOUGH
from .labelled import CONFIDENCE, UNKNOWN, Array, Labelled, Reading
from .recorded import Counts, columns, speed_of
from .table import Row, Table

ALL = "all"
TITLES = {
    ALL: "", "depth": "token of a round", "position": "token of the text", "domain": "domain",
    "temperature": "temperature", "confidence": "confidence",
}  # fmt: skip
ENOUGH_TOKENS = 30  # for metrics of a predictor in a group
METRICS = {"AUROC": "auroc", "Brier": "brier", "of a constant": "brier_constant", "ECE": "ece"}  # by column
SAME = 0.005  # acceptance by the mix of domains that is worth a word

Report = dict[str, Any]


def describe(data: Labelled, cost: CostModel | None = None, priced: str = "") -> Report:
    """The report of a dataset.

    Args:
        cost: costs to replay at; ``priced`` says whose they are. None: no speeds, but tokens by target forward.
    """
    accept, predictions = data.accept, data.predictions()
    first = data.manifests[0]
    return {
        "data": data.name,
        "kind": "rounds" if data.is_rounds else "acceptance",
        "target": first["target"],
        "draft": first["draft"],
        "sampling": [*{str(m["sampling"]): m["sampling"] for m in data.manifests}.values()],
        "texts": len(data.texts),
        "prompts": len({*data.prompts}),
        "tokens": len(accept),
        "acceptance": acceptance(data),
        "per_forward": per_forward(data) if data.is_rounds else None,
        "predictors": {name: quality(values, accept, data) for name, values in predictions.items()},
        "reliability": {
            name: [vars(b) for b in measured(values[~np.isnan(values)], accept[~np.isnan(values)]).reliability()]
            for name, values in predictions.items()
        },
        "replay": {} if data.is_rounds or not predictions else replayed(data, cost),
        "costs": None if cost is None else cost.as_dict() | {"of": priced},
        "notes": data.notes,
    }


def masks_of(data: Labelled) -> dict[tuple[str, str], NDArray[np.bool_]]:
    """(M,) whether each token is in a group, by (way, group); a way with a single group is left out."""
    found = {(ALL, ALL): np.ones(len(data.accept), bool)}
    for way, labels in data.groups().items():
        names = [str(name) for name in np.unique(labels) if name != UNKNOWN]
        if len(names) > 1:
            found |= {(way, name): labels == name for name in sorted(names, key=_natural)}
    return found


def acceptance(data: Labelled) -> dict[str, dict[str, dict[str, float]]]:
    """Mean acceptance by way and group, with 95 % intervals over prompts where there are enough."""
    masks = masks_of(data)
    _, sums = sums_of(data.prompts, data.owner, data.accept, masks)  # type: ignore[arg-type]
    table = zip(masks, *mean_interval(sums), sums.drafted.T, strict=True)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for (way, group), mean, low, high, drafted in table:
        prompts = int((drafted > 0).sum())
        sure = {"low": float(low), "high": float(high)} if prompts >= ENOUGH else {}
        counts = {"tokens": int(drafted.sum()), "prompts": prompts}
        found.setdefault(way, {})[group] = {"acceptance": float(mean), **sure, **counts}
    return found


def per_forward(data: Labelled) -> float:
    """Tokens that a round with a draft gave: the accepted ones, which are the text's, and one more."""
    rounds = kept = 0
    for text in data.texts:
        rounds += text.depths.count(0)
        drafted = zip(text.places, text.tokens, strict=True)
        kept += sum(place < len(text.x) and text.x[place] == token for place, token in drafted)
    return kept / rounds + 1


def quality(values: Array, accept: Array, data: Labelled) -> dict[str, dict[str, float | None]]:
    """Brier score, ECE, AUROC and KL of a predictor, of all tokens and by depth, or by position without rounds.

    ``brier_constant`` is that of the best constant, the mean. AUROC is None where all labels are 0 or all 1.
    """
    labels = data.groups()["depth" if data.is_rounds else "position"]
    known = ~np.isnan(values)
    groups = {ALL: known, **{str(g): known & (labels == g) for g in sorted(np.unique(labels), key=_natural)}}
    found = {}
    for name, mask in groups.items():
        if mask.sum() >= ENOUGH_TOKENS or name == ALL:
            metrics = measured(values[mask], accept[mask]).compute() | {"brier_constant": float(np.var(accept[mask]))}
            finite = {key: value if np.isfinite(value) else None for key, value in metrics.items()}
            found[name] = {**finite, "tokens": int(mask.sum())}
    return found


# Lengths replayed on labels.


def labelled_trace(data: Labelled, index: int, reading: Reading) -> Trace:
    """Text ``index`` of acceptance data as a trace: kept by its labels, and the draft goes on along the text."""
    text = data.texts[index]
    count = len(text.x)
    uniforms = drawn_for(0, "kept", text.prompt_id, count=count).tolist()
    return Trace(
        text=text.x, budget=count, kept=[u < p for u, p in zip(uniforms, text.accept, strict=True)],
        after=[*range(1, count), END], tokens=text.tokens, q=[s[0] for s in reading.signals], signals=reading.signals,
        ngram_matches=reading.matches, accept=text.accept, states=reading.before,
    )  # fmt: skip


def replayed(data: Labelled, cost: CostModel | None) -> dict[str, dict[str, float]]:
    """Tokens by target forward, the accepted share and, with costs, the speed-up of every length and controller.

    Families of rules are added with the value that is tuned on one half of the texts and judged on the other.
    """
    read = [(i, reading) for i, reading in enumerate(data.readings) if reading is not None and len(data.texts[i].x) > 1]
    traces = [(i, reading, labelled_trace(data, i, reading)) for i, reading in read]

    def counts(make: Callable[[int, Reading], LengthController]) -> list[Counts]:
        return [Counts.of(replay(trace, make(i, reading), frozenset())) for i, reading, trace in traces]

    if not traces:
        return {}
    of = {(FIXED, float(k)): counts(lambda i, r, k=k: Fixed(k)) for k in LENGTHS}  # type: ignore[misc]
    of |= {(CONFIDENCE_RULE, x): counts(lambda i, r, x=x: CumulativeConfidence(x)) for x in CONFIDENCES}  # type: ignore[misc]
    found = {_setting(*setting): _figures(own, cost) for setting, own in of.items()}
    if cost is None:
        return found
    for family, values in {FIXED: LENGTHS, CONFIDENCE_RULE: CONFIDENCES}.items():
        chosen = tuned([float(x) for x in values], family, of, cost)
        judged = crossed(family, chosen, of)
        assert judged is not None
        found[f"best {family} ({chosen[2]:g})"] = _figures(judged, cost)
    for name, predictor in data.predictors.items():

        def make(i: int, reading: Reading, predictor: Any = predictor) -> LengthController:
            values = predictor.predict_all(reading.signals, reading.matches, reading.before, data.texts[i].tokens)
            return RateOptimal(PrecomputedPredictor(predictor, values), cost)

        found[name] = _figures(counts(make), cost)
    return found


def _setting(family: str, value: float) -> str:
    return f"{value:g}" if family == FIXED else f"cumulative-confidence:{value:g}"


def _figures(counts: Sequence[Counts], cost: CostModel | None) -> dict[str, float]:
    generated, drafted, accepted, forwards = (values.sum() for values in columns(counts))
    found = {"per_forward": float(generated / forwards), "accepted": float(accepted / max(1, drafted))}
    if cost is None:
        return found
    return found | speed_of(counts, cost).as_dict("speedup")


# Two datasets.


def compare_data(first: Labelled, second: Labelled) -> Report:
    """Where acceptance drifted from the first dataset to the second.

    Raises:
        InputError: they are of different pairs.
    """
    if first.manifests[0]["fingerprint"] != second.manifests[0]["fingerprint"]:
        raise InputError(
            f"against={second.name!r}: of another pair than {first.name}; give a dataset of the same models"
        )
    masks, others = masks_of(first), masks_of(second)
    ways = [
        (way, group)
        for way, labels in first.groups().items()
        for group in sorted({*labels.tolist()} & {*second.groups()[way].tolist()} - {UNKNOWN}, key=_natural)
    ]
    groups = [(ALL, ALL), *(pair for pair in ways if pair in masks or pair in others)]
    found = drifts(_sums(first, groups), _sums(second, groups))
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for (way, group), drift in zip(groups, found, strict=True):
        values = drift._asdict() | {"difference": drift.difference, "found": drift.found}
        table.setdefault(way, {})[group] = values
    return {"data": first.name, "against": second.name, "drift": table, "mix": mix(table.get("domain", {})),
            "differs": _differing(first, second)}  # fmt: skip


def _sums(data: Labelled, groups: Sequence[tuple[str, str]]) -> tuple[list[str], Sums]:
    labels = {**data.groups(), ALL: np.full(len(data.accept), ALL)}
    return sums_of(data.prompts, data.owner, data.accept, {g: labels[g[0]] == g[1] for g in groups})  # type: ignore[misc]


def mix(domains: Mapping[str, Mapping[str, Any]]) -> float | None:
    """How much of the difference comes from other shares of the domains, each at its mean acceptance of both."""
    tokens, others = (np.array([d[name] for d in domains.values()], float) for name in ("tokens", "other_tokens"))
    if len(domains) < 2:
        return None
    both = np.array([(d["acceptance"] + d["other"]) / 2 for d in domains.values()])
    return float(((others / others.sum() - tokens / tokens.sum()) * both).sum())


def _differing(first: Labelled, second: Labelled) -> list[str]:
    """Settings that may be why, in words."""
    found = []
    for name in ("temperature", "top_k", "top_p"):
        one, other = ({str(m["sampling"][name]) for m in data.manifests} for data in (first, second))
        if one != other:
            found.append(f"{name.replace('_', '-')} {', '.join(sorted(one))} and {', '.join(sorted(other))}")
    if first.is_rounds != second.is_rounds:
        found.append(
            "one has a token at every position and the other those that a controller drafted: compare by confidence"
        )
    return found


# Words and tables.


def sentences(report: Report) -> list[str]:
    """What the report of a dataset says, the first sentence first."""
    whole = report["acceptance"][ALL][ALL]
    temperatures = ", ".join(f"{t:g}" for t in sorted({s["temperature"] for s in report["sampling"]}))
    line = (
        f"In {report['data']} ({report['texts']} texts at temperature {temperatures}) the target accepts "
        f"{_mean(whole)} of the drafted tokens"
    )
    depths = [*report["acceptance"].get("depth", {}).items()]
    if depths:
        (start, at_start), (end, at_end) = depths[0], depths[-1]
        line += (
            f", {at_start['acceptance']:.2f} of token {start} of a round and {at_end['acceptance']:.2f} of token {end}"
        )
    sure = [item for item in report["acceptance"].get("domain", {}).items() if "low" in item[1]]
    domains = sorted(sure, key=lambda item: -item[1]["acceptance"])
    if len(domains) > 1:
        (best, most), (worst, least) = domains[0], domains[-1]
        line += f", most in {best} ({most['acceptance']:.2f}) and least in {worst} ({least['acceptance']:.2f})"
    found = [line + "."]
    if report["per_forward"] is not None:
        found.append(f"A round with a draft gave {report['per_forward']:.2f} tokens.")
    speeds = {name: row for name, row in report["replay"].items() if "speedup" in row}
    if speeds:
        best = max(speeds, key=lambda name: speeds[name]["speedup"])
        what = (
            f"{_speed(speeds[best], report)} × as fast as no drafts, replayed on the labels at {report['costs']['of']}"
        )
        found.append(f"{best} would decode {what}." if speeds[best]["speedup"] > 1
                     else f"Do not draft here: the best, {best}, would decode {what}.")  # fmt: skip
    return [*found, *judgements(report["predictors"])]


def judgements(predictors: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """What is to be said of predictors: how well the draft's own confidence does, and which are worse than it."""
    if CONFIDENCE not in predictors:
        return []
    own = predictors[CONFIDENCE][ALL]
    found = [
        f"{CONFIDENCE.capitalize()} has an AUROC of {_number(own['auroc'])} and a calibration error of "
        f"{_number(own['ece'])}."
    ]
    for name, by_group in predictors.items():
        if name != CONFIDENCE:
            found += [f"{name} is {words}." for words in shortcomings({**by_group[ALL], "auroc_draft": own["auroc"]})]
    return found


def drift_sentences(report: Report) -> list[str]:
    """What the comparison of two datasets says."""
    table, names = report["drift"], f"from {report['data']} to {report['against']}"
    whole = table[ALL][ALL]
    found = [(way, group, row) for way, rows in table.items() for group, row in rows.items() if row["found"]]
    change = f"{whole['acceptance']:.2f} → {whole['other']:.2f}, {_difference(whole)}"
    if not found:
        lines = [f"No drift {names}: acceptance is {change}; no group differs by more than chance would give."]
    else:
        moved = "rose" if whole["difference"] > 0 else "fell"
        start = (
            f"Acceptance {moved} {names}" if whole["found"] else f"Acceptance as a whole stayed {names}, parts did not"
        )
        places = [(w, g, row) for w, g, row in found if w != ALL]
        lines = [f"{start}: {change}."]
        if places:
            way, group, row = max(places, key=lambda item: abs(item[2]["difference"]))
            lines.append(
                f"Most for {TITLES[way]} {group}: {row['acceptance']:.2f} → {row['other']:.2f}, {_difference(row)}; "
                f"{len(places)} of {sum(map(len, table.values())) - 1} groups drifted."
            )
    if report["mix"] is not None and abs(report["mix"]) > SAME:
        lines.append(f"The mix of domains accounts for {report['mix']:+.2f} of it.")
    lines += [f"They differ in settings: {words}." for words in report["differs"]]
    return lines


def tables(report: Report) -> list[Table]:
    """Acceptance by group, predictors, and replayed lengths."""
    found = [Table("Acceptance", [
        {"tokens of": _group(way, group), "acceptance": _mean(row), "drafted": f"{row['tokens']}",
         "prompts": f"{row['prompts']}"}
        for way, rows in report["acceptance"].items() for group, row in rows.items()
    ])]  # fmt: skip
    way = "depth" if report["kind"] == "rounds" else "position"
    rows: list[Row] = []
    for name, by_group in report["predictors"].items():
        for group, row in by_group.items():
            cells = {
                "predictor": name if group == ALL else "",
                "tokens of": _group(ALL if group == ALL else way, group),
            }
            cells |= {column: _number(row[key]) for column, key in METRICS.items()}
            rows.append(cells)
    if rows:
        found.append(Table("Predictors of acceptance", rows))
    if report["replay"]:
        found.append(Table("Lengths replayed on the labels", [
            {"length": name, "per forward": f"{row['per_forward']:.2f}", "accepted": f"{row['accepted']:.0%}",
             **({"speed-up": _speed(row, report)} if "speedup" in row else {})}
            for name, row in report["replay"].items()
        ]))  # fmt: skip
    return found


def drift_table(report: Report) -> Table:
    """The groups of both datasets, those that drifted in bold."""
    rows = []
    for way, of_way in report["drift"].items():
        for group, row in of_way.items():
            name = _group(way, group)
            rows.append({
                "tokens of": f"[bold]{name}[/bold]" if row["found"] else name,
                "acceptance": f"{row['acceptance']:.3f}", "against": f"{row['other']:.3f}",
                "difference": _difference(row), "p": f"{row['p']:.3f}",
            })  # fmt: skip
    return Table("Drift", rows)


LEGEND = (
    "acceptance: the mean probability that the target accepts a drafted token, with its 95 % interval over prompts; "
    "AUROC: how often a predictor ranks an accepted token above a rejected one, 0.5 by chance; Brier: its mean squared "
    "error, beside that of predicting the mean everywhere; ECE: how far its probabilities are from what happens."
)
DRIFT_LEGEND = (
    "p: the probability of a difference this large anywhere in the table if nothing had drifted, from reassignments of "
    "the prompts to the two datasets; bold: at most 0.05."
)
REPLAY_LEGEND = (
    "Replayed on the labels: whether a token is kept is drawn with its acceptance, and after a rejected one the draft "
    "goes on as along the text."
)


def as_markdown(report: Report, drift: Report | None) -> str:
    """The reports of a dataset and of its drift as a page."""
    said = [*([] if drift is None else drift_sentences(drift)), *sentences(report)]
    lines = [f"# Acceptance: {report['draft']} for {report['target']}", "", " ".join(said), ""]
    lines += [] if drift is None else [drift_table(drift).markdown(), DRIFT_LEGEND, ""]
    for table in tables(report):
        lines += [table.markdown()]
    lines += [LEGEND, *([REPLAY_LEGEND] if report["replay"] else []), "", *(f"* {note}" for note in report["notes"])]
    return "\n".join([*lines, ""])


def _natural(name: Any) -> tuple[float, str]:
    """Groups that begin with a number by that, others by name."""
    head = str(name).partition("–")[0].partition(" ")[0]
    try:
        return float(head), str(name)
    except ValueError:
        return float("inf"), str(name)


def _group(way: str, group: str) -> str:
    return group if way == ALL else f"{TITLES[way]} {group}"


def _mean(row: Mapping[str, float]) -> str:
    value = f"{row['acceptance']:.2f}"
    return f"{value} ({row['low']:.2f}–{row['high']:.2f})" if "low" in row else value


def _speed(row: Mapping[str, float], report: Report) -> str:
    value = f"{row['speedup']:.2f}"
    return value if report["prompts"] < ENOUGH else f"{value} ({row['low']:.2f}–{row['high']:.2f})"


def _difference(row: Mapping[str, float]) -> str:
    return f"{row['difference']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f})"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
