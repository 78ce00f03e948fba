"""Decoding of a real pair by the clock, by engine and kind of prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from specpilot.common.console import quiet
from specpilot.common.errors import InputError
from specpilot.common.machine import commit, machine, versions
from specpilot.compare.interval import ratio_interval, show
from specpilot.compare.runner import Run, interleave_stored
from specpilot.compare.store import Store
from specpilot.compare.table import Table
from specpilot.controllers.arms import DRAFT
from specpilot.controllers.checkpoints.provenance import TOKENIZER
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.prompts import PromptRow, load_prompts
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.loading.controllers import load_policy
from specpilot.infer.prompting import encode_prompt

from .configurations import (
    AUTOREGRESSIVE,
    COPIES,
    OURS,
    PREDICTOR,
    PREDICTOR_NGRAM,
    ROUTED_LENGTH,
    ROUTER,
    Generate,
    of_llama_cpp,
    of_torch,
)
from .settings import RealDecodeOptions

LLAMA = "llama.cpp"
ALL = "all"
Times = dict[str, tuple[Any, Any]]  # tokens and seconds (prompts,) by configuration


def measure(settings: RealDecodeOptions, output: Path) -> dict[str, Any]:
    """Time every configuration on the same prompts in turn, and write the result to ``output``.

    Raises:
        InputError: a model or controller is missing or does not fit, or another process measures in the folder.
    """
    rows = chosen(load_prompts(str(settings.prompts)), settings.per_kind)
    kinds = [row.domain for row in rows]
    times: dict[str, dict[str, Times]] = {}
    with Store(settings.folder) as store:
        for engine in (*settings.dtypes, LLAMA) if settings.gguf is not None else settings.dtypes:
            decoder = _decoder(engine, settings)
            routed = None if settings.router is None or engine == LLAMA else _routed(engine, settings.router, settings)
            prompts = [encode_prompt(decoder.tokenizer, row.prompt, chat=True, system=None) for row in rows]
            times[engine] = {}
            for temperature in settings.temperatures:
                sampling = SamplingParams(temperature, None, 0.95 if temperature else 1.0)
                if engine == LLAMA:
                    runs = of_llama_cpp(decoder, settings.copies, sampling, settings.max_new_tokens)
                else:
                    runs = of_torch(
                        decoder, settings.controller, settings.copies, routed, sampling, settings.max_new_tokens
                    )
                    check_names(settings.only, runs)
                runs = {name: run for name, run in runs.items() if settings.only is None or name in settings.only}
                identity = {"engine": engine, "threads": torch.get_num_threads(), **_described(settings, sampling)}
                times[engine][str(temperature)] = timed(runs, rows, prompts, store, identity)
    result = {
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "settings": {name: str(value) for name, value in vars(settings).items() if name not in ("folder", "output")},
        **summary(times, kinds),
    }
    output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def _decoder(engine: str, settings: RealDecodeOptions) -> SpeculativeDecoder:
    """The pair in PyTorch with the precision ``engine``, or the GGUF file in llama.cpp."""
    if engine == LLAMA:
        return SpeculativeDecoder.from_pretrained(str(settings.gguf), length=0, dtype="auto", pair_check=TOKENIZER)
    return SpeculativeDecoder.from_pretrained(
        settings.target, settings.draft, dtype=engine, draft_dtype=settings.draft_dtype, pair_check=TOKENIZER
    )


def check_names(only: tuple[str, ...] | None, runs: Mapping[str, Generate]) -> None:
    """Raise InputError if ``only`` names a configuration that is not among ``runs``."""
    unknown = sorted({*(only or ())} - runs.keys())
    if unknown:
        raise InputError(f"only={unknown[0]!r}: no such configuration; they are {', '.join(sorted(runs))}")


def _routed(engine: str, router: str, settings: RealDecodeOptions) -> SpeculativeDecoder:
    """The target in PyTorch with ``router``, whose draft may lie elsewhere than where it was trained."""
    arms = [settings.draft if arm.kind == DRAFT else arm.name for arm in load_policy(router)[1].arms]
    return SpeculativeDecoder.from_pretrained(
        settings.target, arms, router=router, length=ROUTED_LENGTH, dtype=engine, draft_dtype=settings.draft_dtype,
        pair_check=TOKENIZER,
    )  # fmt: skip


def _described(settings: RealDecodeOptions, sampling: SamplingParams) -> dict[str, Any]:
    names = ("target", "draft", "draft_dtype", "gguf", "controller", "copies", "router")
    models = {name: str(vars(settings)[name]) for name in names}
    return {"commit": commit(), **models, **sampling.as_dict(), "max_new_tokens": settings.max_new_tokens}


def timed(
    runs: Mapping[str, Generate],
    rows: list[PromptRow],
    prompts: list[list[int]],
    store: Store,
    identity: Mapping[str, Any],
) -> Times:
    """Tokens and seconds of every configuration on every prompt, as far as they are not in ``store`` yet."""

    def of_item(run: Generate) -> Run[int]:
        return lambda item, repeat: run(prompts[item], item)

    with torch.random.fork_rng():
        torch.manual_seed(0)  # transformers samples from the global generator
        found = interleave_stored(
            {name: of_item(run) for name, run in runs.items()},
            len(rows),
            Console(stderr=True),
            store=store,
            identity=lambda name, item: {**identity, "name": name, "prompt": rows[item].prompt},
            record=lambda name, item, timed: [timed.value, timed.seconds],
        )
    return {name: (np.array(records)[:, 0], np.array(records)[:, 1]) for name, records in found.items()}


def summary(times: Mapping[str, Mapping[str, Times]], kinds: list[str]) -> dict[str, Any]:
    """Rates by engine, temperature, kind of prompt and configuration, and what the learned controller gains.

    Args:
        times: by engine, which is llama.cpp or a precision in PyTorch, and temperature.
        kinds: (prompts,) the kind of each.
    """
    masks = {ALL: np.ones(len(kinds), dtype=bool)} | {kind: np.array(kinds) == kind for kind in sorted(set(kinds))}
    rates = {
        engine: {
            temperature: {
                kind: {name: float(tokens[at].sum() / spent[at].sum()) for name, (tokens, spent) in of.items()}
                for kind, at in masks.items()
            }
            for temperature, of in by_temperature.items()
        }
        for engine, by_temperature in times.items()
    }
    ratios = {
        engine: {temperature: compared(of, masks) for temperature, of in by_temperature.items()}
        for engine, by_temperature in times.items()
    }
    return {"tokens_per_second": rates, "ratios": ratios}


def compared(times: Times, masks: Mapping[str, Any]) -> dict[str, Any]:
    """Ours, its chains and the router over autoregressive decoding and the best rule, and where ours gains least."""
    if not {OURS, AUTOREGRESSIVE} <= times.keys():
        return {}
    plain = (AUTOREGRESSIVE, OURS, PREDICTOR, PREDICTOR_NGRAM, COPIES, ROUTER)
    rules = [name for name in times if name.startswith("specpilot-") and name not in plain]

    def over(name: str, at: Any, ours: str = OURS) -> dict[str, float]:
        tokens, seconds = zip(*((t[at], s[at]) for t, s in (times[ours], times[name])), strict=True)
        return ratio_interval(tokens[0], seconds[0], tokens[1], seconds[1]).as_dict("ratio")

    whole = masks[ALL]
    by_kind = {kind: over(AUTOREGRESSIVE, at) for kind, at in masks.items()}
    worst = min(by_kind, key=lambda kind: by_kind[kind]["ratio"])
    result: dict[str, Any] = {
        "ours_over_autoregressive": by_kind[ALL],
        "worst_over_autoregressive": {**by_kind[worst], "kind": worst},
    }
    if PREDICTOR_NGRAM in times:
        result["chains_over_autoregressive"] = over(AUTOREGRESSIVE, whole, PREDICTOR_NGRAM)
    if ROUTER in times:
        result["router_over_autoregressive"] = over(AUTOREGRESSIVE, whole, ROUTER)
    if rules:
        best = max(rules, key=lambda name: times[name][0].sum() / times[name][1].sum())
        result["ours_over_best_rule"] = {**over(best, whole), "rule": best}
        if PREDICTOR_NGRAM in times:
            result["chains_over_best_rule"] = over(best, whole, PREDICTOR_NGRAM)
    return result


def chosen(rows: list[PromptRow], per_kind: int) -> list[PromptRow]:
    """The first ``per_kind`` prompts of every domain."""
    ordered = sorted(rows, key=lambda row: row.domain)
    return [row for _, group in groupby(ordered, lambda row: row.domain) for row in list(group)[:per_kind]]


RATIOS = {
    "ours_over_autoregressive": "over autoregressive",
    "ours_over_best_rule": "over the best rule",
    "worst_over_autoregressive": "over autoregressive on the worst kind",
}
WHERE_MEASURED = {
    "chains_over_autoregressive": "its chains over autoregressive",
    "chains_over_best_rule": "its chains over the best rule",
    "router_over_autoregressive": "the router over autoregressive",
}


def as_tables(result: Mapping[str, Any]) -> list[Table]:
    """Tokens per second of every configuration, and what the trained predictor gains, by engine and temperature."""
    tables, gains = [], []
    for engine, by_temperature in result["tokens_per_second"].items():
        for temperature, by_kind in by_temperature.items():
            place = f"{engine if engine == LLAMA else f'PyTorch, {engine}'}, temperature {float(temperature):g}"
            rows = [
                {"tokens/s": name, **{kind: f"{rates[name]:.1f}" for kind, rates in by_kind.items()}}
                for name in by_kind[ALL]
            ]
            tables.append(Table(place, rows))
            ratios = result["ratios"][engine][temperature]
            if ratios:
                shown = RATIOS | {key: label for key, label in WHERE_MEASURED.items() if key in ratios}
                gains.append({"ours": place} | {label: _shown(ratios.get(key)) for key, label in shown.items()})
    return [*tables, Table("", gains)] if gains else tables


def _shown(ratio: Mapping[str, Any] | None) -> str:
    if ratio is None:
        return ""
    of = ratio.get("rule") or ratio.get("kind")
    return show(ratio, "ratio") + (f", {of}" if of else "")


def main(options: RealDecodeOptions) -> None:
    """Time decoding with that draft, by kind of prompt."""
    quiet()
    measure(options, options.output)
    print(options.output)
