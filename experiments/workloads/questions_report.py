"""The report of ``specpilot bench questions``: Spec-Bench's speed-ups (Xia et al. 2024), quality and cost."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from specpilot.compare.energy import NOT_AVAILABLE
from specpilot.compare.interval import show
from specpilot.compare.table import Table
from transformers import PreTrainedTokenizerBase

from ..scoring.perplexity import perplexity

if TYPE_CHECKING:
    from .questions import Answer

MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")


def spec_bench_report(
    lines: list[dict[str, Any]], baseline: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase
) -> dict[str, dict[str, float]]:
    """Spec-Bench's report by category and ``overall``: means over questions of tokens per second.

    Spec-Bench counts the baseline's tokens by encoding the answers' text again, minus one per turn for the start token
    of Llama's tokenizer. ``spec_bench`` does the same; ``speedup`` counts the generated tokens on both sides.
    """
    categories = list(dict.fromkeys(line["category"] for line in lines))
    groups = {category: [category] for category in categories}
    if any(category in MT_BENCH for category in categories):
        groups["mt_bench"] = list(MT_BENCH)
    groups["overall"] = categories
    found = {}
    for name, members in groups.items():
        ours = [line["choices"][0] for line in lines if line["category"] in members]
        theirs = [line["choices"][0] for line in baseline if line["category"] in members]
        again = [sum(len(tokenizer(text)["input_ids"]) - 1 for text in one["turns"]) for one in theirs]
        speed, plain = (fmean(sum(c["new_tokens"]) / sum(c["wall_time"]) for c in part) for part in (ours, theirs))
        counted = fmean(n / sum(c["wall_time"]) for n, c in zip(again, theirs, strict=True))
        found[name] = {
            "questions": len(ours),
            "tokens_per_second": speed,
            "speedup": speed / plain,
            "spec_bench": speed / counted if counted > 0 else float("nan"),
            "mean_accepted_tokens": fmean(length for c in ours for length in c["accept_lengths"]),
        }
    return found


def summary(answers: Sequence[Answer], scores: Sequence[float | None]) -> dict[str, Any]:
    """Quality and cost of a configuration over all questions."""
    scored = [score for score in scores if score is not None]
    joules = [answer.joules for answer in answers if answer.joules is not None]
    likelihoods = [turn for answer in answers for turn in answer.likelihoods]
    tokens = sum(turn.tokens for turn in likelihoods)
    return {
        "perplexity": perplexity(likelihoods),
        "score": fmean(scored) if scored else None,
        "scored": len(scored),
        "tokens_per_target_forward": tokens / sum(answer.forwards for answer in answers),
        "joules_per_token": sum(joules) / tokens if len(joules) == len(answers) else NOT_AVAILABLE,
    }


def as_tables(result: dict[str, Any]) -> list[Table]:
    """Speed by category, and quality by configuration."""
    speed = [
        {
            "category": category,
            "questions": str(row["questions"]),
            "tokens/s": f"{row['tokens_per_second']:.0f}",
            "speed-up": f"{row['speedup']:.2f}",
            "by Spec-Bench's count": f"{row['spec_bench']:.2f}",
            "tokens per round": f"{row['mean_accepted_tokens']:.2f}",
        }
        for category, row in result["speed"].items()
    ]
    quality = [
        {
            "configuration": name,
            "perplexity": show(row["perplexity"]),
            "score": "not scored" if row["score"] is None else f"{row['score']:.3f}",
            "tokens per target forward": f"{row['tokens_per_target_forward']:.2f}",
            "J/token": joules if isinstance(joules := row["joules_per_token"], str) else f"{joules:.3f}",
        }
        for name, row in result["quality"].items()
    ]
    return [Table("", speed), Table("", quality)]
