"""Held-out prompts by domain, of which a controller's training has seen some, and rules replayed over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from specpilot.common.errors import InputError
from specpilot.common.options import Count, Folder, OutputFileOptions
from specpilot.compare import recorded
from specpilot.compare.recorded import Array, Counts, Rule, Setting, Tracer, by_setting, measure_all, replayed_by
from specpilot.compare.store import Store
from specpilot.data_gen.options import BUILTIN, PromptSourceOptions
from specpilot.data_gen.prompts import PromptRow, load_prompts

Rows = Mapping[str, Sequence[PromptRow]]  # by domain
DomainCounts = Mapping[str, Sequence[Counts]]  # by domain, one for each prompt
Counted = Mapping[Setting, DomainCounts]


@dataclass(frozen=True, kw_only=True)
class StudyFolderOptions(OutputFileOptions):
    """Output.

    The option of studies that keep intermediate results.

    Attributes:
        folder: Folder for intermediate results; an interrupted run is continued from it.
    """

    folder: Folder = Path("runs/study")


@dataclass(frozen=True, kw_only=True)
class HeldOutOptions(PromptSourceOptions):
    """Prompts.

    The prompts of studies that evaluate controllers on held-out prompts.

    Attributes:
        in_domain: Training domains of the controllers; the others are only evaluated. Default: math, code, sql and
            prose of the built-in prompts, or else all.
        per_domain: Number of held-out prompts per domain.
    """

    prompts: str = "builtin-large"
    split: str = "test"
    in_domain: tuple[str, ...] = ()
    per_domain: Count = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.in_domain and self.prompts in BUILTIN and self.domains is None:
            object.__setattr__(self, "in_domain", ("math", "code", "sql", "prose"))


def held_out(options: HeldOutOptions) -> Rows:
    """Return the first ``per_domain`` prompts of each domain.

    Raises:
        InputError: a domain has fewer prompts.
    """
    most = options.per_domain
    by_domain: dict[str, list[PromptRow]] = {}
    for row in load_prompts(options.prompts, column=options.column, split=options.split, domains=options.domains):
        by_domain.setdefault(row.domain, []).append(row)
    for domain, rows in by_domain.items():
        if len(rows) < most:
            raise InputError(
                f"per_domain={most}: {options.prompts} has {len(rows)} prompts of {domain!r}; take fewer of each domain"
            )
    return {domain: rows[:most] for domain, rows in sorted(by_domain.items())}


def in_domain(options: HeldOutOptions, rows: Rows) -> tuple[str, ...]:
    """Return the domains that controllers are trained on: ``options.in_domain``, or all.

    Raises:
        InputError: a domain has no prompts.
    """
    if missing := set(options.in_domain) - set(rows):
        raise InputError(
            f"in_domain: no prompts of {sorted(missing)[0]!r} in {options.prompts}; it has {', '.join(sorted(rows))}"
        )
    return options.in_domain or tuple(rows)


def texts(rows: Rows) -> set[str]:
    """Return the prompts of all domains."""
    return {row.text for of_domain in rows.values() for row in of_domain}


def replay_domains(tracer: Tracer, rows: Rows, rules: Sequence[Rule], store: Store, console: Console) -> Counted:
    """Return counters of every setting by domain; a rule that learns does so within a domain."""
    counters: dict[Setting, dict[str, list[Counts]]] = {}
    measures = {rule.name: replayed_by(tracer, rule) for rule in rules}
    for domain, of_domain in rows.items():
        for setting, counts in by_setting(rules, measure_all(tracer, of_domain, measures, store, console)).items():
            counters.setdefault(setting, {})[domain] = counts
    return counters


def groups_of(domains: Sequence[str], in_domain: Sequence[str]) -> dict[str, list[str]]:
    """Return sets of domains by name: all in-domain domains, all left-out domains, and each domain alone."""
    groups = {
        "in_domain": [domain for domain in domains if domain in in_domain],
        "left_out": [domain for domain in domains if domain not in in_domain],
    }
    groups |= {domain: [domain] for domain in domains}
    return {name: members for name, members in groups.items() if members}


def columns(counts: DomainCounts, domains: Sequence[str]) -> tuple[Array, Array, Array, Array]:
    """Return generated, drafted and accepted tokens, and target forwards, (prompts,) each, over several domains."""
    return recorded.columns([c for domain in domains for c in counts[domain]])


def rates_of(generated: Array, drafted: Array, accepted: Array, target_forwards: Array) -> dict[str, float]:
    """Return discarded draft tokens and target forwards per generated token, over all prompts (SpecDec++ eq. 2.3)."""
    total = generated.sum()
    return {
        "discard_rate": float((drafted - accepted).sum() / total),
        "verification_rate": float(target_forwards.sum() / total),
    }
