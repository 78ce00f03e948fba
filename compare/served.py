"""``specpilot compare --data``: acceptance, calibration and replayed lengths of a dataset, and its drift from another.

Nothing is generated, and the target is not needed. Acceptance data has a label at every position, so that lengths can
be replayed: whether a token is kept is drawn with its label, and after a rejected token the draft is taken to go on
with the confidences that it has along the text. Rounds hold what was drafted up to the first rejected token, and tell
what was decoded. Pure functions from :class:`.Labelled` to a report of JSON values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..common.errors import InputError, counted
from ..controllers.length import RateOptimal
from ..controllers.length.cost_model import CostModel
from ..infer.random_source import drawn_for
from ..simulate.replay import PrecomputedPredictor
from ..simulate.trace import END, Trace
from .decoders import NONE
from .drafted import ALL, OWN, drift_of, judgements
from .interval import Interval, show
from .labelled import Labelled, Reading, predicted
from .recorded import INFORMED, Counts, Rule, Setting, figures_of, informed_rule, replay_rule, speed_of
from .report import difference, group_name
from .settings import FAMILIES, FIXED, by_length, crossed, rule_of, tuned, word_of

Report = dict[str, Any]


def report_of(sides: Sequence[Labelled], cost: CostModel | None = None, priced: str = "") -> Report:
    """The report of a dataset, and where there is a second one, of where acceptance drifted to it.

    Args:
        cost: costs to replay at; ``priced`` says whose they are. None: no speeds, but tokens by target forward.

    Raises:
        InputError: they are of different pairs.
    """
    first, *others = sides
    report = describe(first, cost, priced)
    said = sentences(report)
    for other in others:
        pairs = [side.manifests[0]["fingerprint"] for side in (first, other)]
        if None not in pairs and pairs[0] != pairs[1]:
            raise InputError(
                f"against={other.name!r}: of another pair than {first.name}; give a dataset of the same models"
            )
        report |= {
            "against": describe(other, cost, priced),
            "drift": drift_of(first.drafted, other.drafted),
            "differs": _differing(first, other),
        }
        said = [*drift_sentences(report), *said]
    return {"sentences": said, **report}


def describe(data: Labelled, cost: CostModel | None = None, priced: str = "") -> Report:
    """The report of one dataset; arguments as for :func:`report_of`."""
    first = data.manifests[0]
    return {
        "data": data.name,
        "kind": first["kind"],
        "target": first["target"],
        "draft": first["draft"],
        "sampling": [*{str(m["sampling"]): m["sampling"] for m in data.manifests}.values()],
        "texts": len(data.texts),
        "prompts": len({*data.prompts}),
        "tokens": len(data.drafted.accept),
        "per_forward": per_forward(data) if data.is_rounds else None,
        **data.drafted.figures(),
        **replayed(data, cost),
        "costs": None if cost is None else cost.as_dict(),
        "priced": priced,
        "notes": data.notes,
    }


def per_forward(data: Labelled) -> float:
    """Tokens that a round with a draft gave: the accepted ones, which are the text's, and one more."""
    rounds = kept = 0
    for text in data.texts:
        rounds += text.depths.count(0)
        drafted = zip(text.places, text.tokens, strict=True)
        kept += sum(place < len(text.x) and text.x[place] == token for place, token in drafted)
    return kept / rounds + 1


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


def replayed(data: Labelled, cost: CostModel | None) -> Report:
    """Every length and controller on acceptance data, as the ``decoders`` of a comparison; empty for rounds.

    With costs, families of rules have the value that is tuned on one half of the texts and judged on the other.
    """
    found: Report = {"decoders": {}, "best": None, "lengths": [], "informed": None}
    read = [(i, reading) for i, reading in enumerate(data.readings) if reading is not None and len(data.texts[i].x) > 1]
    if data.is_rounds or not read:
        return found
    traces = [labelled_trace(data, i, reading) for i, reading in read]
    rules = [*map(rule_of, FAMILIES)]
    if cost is not None:
        rules.append(informed_rule(cost))
        for name, predictor in data.predictors.items():
            values = [predicted(predictor, data.texts[i], reading) for i, reading in read]
            made = [RateOptimal(PrecomputedPredictor(predictor, each), cost) for each in values]
            rules.append(Rule(name, (0.0,), {}, lambda _, made=made: lambda index, x: made[index]))  # type: ignore[misc]
    counts: dict[Setting, list[Counts]] = {}
    for rule in rules:
        by_parameter = zip(rule.parameters, replay_rule(traces, rule, frozenset()), strict=True)
        counts |= {(rule.name, x): of for x, of in by_parameter}
    if cost is None:
        rows = {word_of(*setting): figures_of(of, None) for setting, of in counts.items()}
        return found | {"decoders": {name: {"title": name, **row} for name, row in rows.items()}}
    none = Interval(1.0, 1.0, 1.0).as_dict()
    rows = {NONE: {"title": NONE, "replay": none, "tokens_per_forward": 1.0, "accepted": None}}
    for name, family in FAMILIES.items():
        chosen = tuned(family.values, name, counts, cost)
        judged = crossed(name, chosen, counts)
        assert judged is not None
        rows[name] = {"title": f"{name} {chosen[2]:g}", **figures_of(judged, cost)}
    rows |= {name: {"title": name, **figures_of(counts[name, 0.0], cost)} for name in data.predictors}
    reached = {name: row["replay"]["value"] for name, row in rows.items()}
    bound = speed_of(counts[INFORMED, 0.0], cost).value
    return {
        "decoders": rows,
        "best": max(reached, key=lambda name: reached[name]),
        "lengths": by_length(counts, FIXED, cost),
        "informed": bound if bound >= max(reached.values()) else None,
    }


def _differing(first: Labelled, second: Labelled) -> list[str]:
    """Settings that may be why, in words."""
    found = []
    for name in ("temperature", "top_k", "top_p"):
        one, other = (
            {str(m["sampling"][name]) for m in data.manifests if name in m["sampling"]} for data in (first, second)
        )
        if one and other and one != other:
            found.append(f"{name.replace('_', '-')} {', '.join(sorted(one))} against {', '.join(sorted(other))}")
    if first.is_rounds != second.is_rounds:
        found.append(
            "one has a token at every position and the other those that a controller drafted: compare by confidence"
        )
    return found


def sentences(report: Report) -> list[str]:
    """What the report of a dataset says, the first sentence first."""
    acceptance, whole = report["acceptance"], report["acceptance"][ALL][ALL]
    temperatures = sorted({s["temperature"] for s in report["sampling"] if "temperature" in s})
    at = f" at temperature {', '.join(f'{t:g}' for t in temperatures)}" if temperatures else ""
    line = (
        f"In {report['data']} ({counted(report['texts'], 'text')}{at}) the target accepts "
        f"{show(whole, 'acceptance')} of the drafted tokens"
    )
    depths = [*acceptance.get("depth", {}).items()]
    if depths:
        (start, at_start), (end, at_end) = depths[0], depths[-1]
        line += (
            f", {at_start['acceptance']:.2f} of token {start} of a round and {at_end['acceptance']:.2f} of token {end}"
        )
    sure = [item for item in acceptance.get("domain", {}).items() if "low" in item[1]]
    domains = sorted(sure, key=lambda item: -item[1]["acceptance"])
    if len(domains) > 1:
        (best, most), (worst, least) = domains[0], domains[-1]
        line += f", most in {best} ({most['acceptance']:.2f}) and least in {worst} ({least['acceptance']:.2f})"
    found = [line + "."]
    if report["per_forward"] is not None:
        found.append(f"A round with a draft gave {report['per_forward']:.2f} tokens.")
    if report["best"] is not None:
        row = report["decoders"][report["best"]]
        speed = show(row["replay"], prompts=report["prompts"])
        what = f"{speed} × as fast as no drafts, replayed on the labels at {report['priced']}"
        found.append(
            f"{row['title']} would decode {what}." if report["best"] != NONE
            else f"Do not draft here: no length would decode faster than no drafts, replayed at {report['priced']}."
        )  # fmt: skip
    own = report["predictors"].get(OWN, {}).get(ALL)
    if own is not None and own["auroc"] is not None:
        found.append(
            f"{OWN.capitalize()} has an AUROC of {own['auroc']:.3f} and a calibration error of {own['ece']:.3f}."
        )
    return [*found, *judgements(report["predictors"])]


def drift_sentences(report: Report) -> list[str]:
    """What the comparison of two datasets says."""
    table, names = report["drift"], f"from {report['data']} to {report['against']['data']}"
    whole = table[ALL][ALL]
    found = [(way, group, row) for way, rows in table.items() for group, row in rows.items() if row["found"]]
    change = f"{whole['acceptance']:.2f} → {whole['other']:.2f}, {difference(whole)}"
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
                f"Most for {group_name(way, group)}: {row['acceptance']:.2f} → {row['other']:.2f}, {difference(row)}; "
                f"{len(places)} of {sum(map(len, table.values())) - 1} groups drifted."
            )
    return lines + [f"They differ in settings: {words}." for words in report["differs"]]
