"""``specpilot bench questions``: a workload's questions answered by a configuration and by autoregressive decoding.

Both leave a file of answers in the format of Spec-Bench (Xia et al. 2024), whose report scripts can read it; ``report``
is what those scripts compute.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from transformers import PreTrainedTokenizerBase

from ...data_gen.dataset import replacing
from ...data_gen.tasks import Question
from ...infer.decoder import SpeculativeDecoder
from ..energy import NOT_AVAILABLE, Meter, Reading
from ..scoring.answer import answer_score
from ..scoring.code import code_score
from ..scoring.perplexity import Likelihood, likelihood, perplexity
from ..scoring.rouge import rouge_l
from ..scoring.sql import sql_score
from ..store import Store

MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")


@dataclass(frozen=True)
class Answer:
    """One question answered.

    Attributes:
        line: in Spec-Bench's form.
        likelihoods: what the unwarped target thinks of each turn.
        forwards: of the target.
        joules: of all devices; None where there is no counter.
        score: of the last turn, judged anew in every run; None where it is not judged.
    """

    line: dict[str, Any]
    likelihoods: list[Likelihood]
    forwards: int
    joules: float | None
    score: float | None = None

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Answer:
        return cls(**(data | {"likelihoods": [Likelihood(**one) for one in data["likelihoods"]]}))


def answer(
    decoders: dict[str, SpeculativeDecoder],
    questions: Sequence[Question],
    sampling: dict[str, Any],
    *,
    chat: bool,
    run_code: bool,
    meter: Meter,
    store: Store,
    identities: Mapping[str, Mapping[str, Any]],
    on_progress: Callable[[], None] = lambda: None,
) -> dict[str, list[Answer]]:
    """Every question by every one of ``decoders``, in turn; a later turn sees the configuration's own answers.

    Args:
        store: where answers are kept; those that are there already are not given again.
        identities: by decoder, all that its answers depend on but the question and its place.
    """
    names = list(decoders)
    for decoder in decoders.values():  # warm-up, not counted
        decoder.generate(questions[0].turns[0], chat=chat, **(sampling | {"max_new_tokens": 8}))
    found: dict[str, list[Answer]] = {name: [] for name in names}
    for index, question in enumerate(questions):
        turn = index % len(names)
        for name in names[turn:] + names[:turn]:
            identity = {**identities[name], "question": asdict(question), "seed": index}
            known = store.get(identity)
            if known is None:
                given = _answer(name, decoders[name], question, index, sampling, chat, meter)
                store.put(identity, asdict(given))
            else:
                given = Answer.from_dict(known)
            score = judge(question, given.line["choices"][0]["turns"][-1], run_code=run_code)
            found[name].append(replace(given, score=score))
            on_progress()
    return found


def _answer(
    name: str,
    decoder: SpeculativeDecoder,
    question: Question,
    seed: int,
    sampling: dict[str, Any],
    chat: bool,
    meter: Meter,
) -> Answer:
    messages: list[dict[str, str]] = []
    choice: dict[str, Any] = {
        "index": 0, "turns": [], "decoding_steps": [], "new_tokens": [], "wall_time": [], "accept_lengths": [],
    }  # fmt: skip
    likelihoods, forwards, energy = [], 0, Reading({}, 0.0)
    for text in question.turns:
        messages.append({"role": "user", "content": text})
        prompt = list(messages) if chat else "\n\n".join(message["content"] for message in messages)
        with meter.interval() as reading:
            started = time.perf_counter()
            generation = decoder.generate(prompt, seed=seed, **sampling)
            seconds = time.perf_counter() - started
        energy.add(reading)
        likelihoods.append(likelihood(decoder.target, generation.prompt_tokens, generation.tokens))
        messages.append({"role": "assistant", "content": generation.text})
        forwards += generation.stats.n_target_forwards
        choice["turns"].append(generation.text)
        choice["decoding_steps"].append(generation.stats.n_target_forwards)
        choice["new_tokens"].append(len(generation.tokens))
        choice["wall_time"].append(seconds)
        choice["accept_lengths"] += [len(r.emitted) for r in generation.rounds]
    line = {
        "question_id": question.id,
        "category": question.category,
        "answer_id": hashlib.sha256(json.dumps([name, question.id, choice["turns"]]).encode()).hexdigest()[:22],
        "model_id": name,
        "choices": [choice],
        "tstamp": time.time(),
    }
    return Answer(line, likelihoods, forwards, energy.total)


def judge(question: Question, text: str, *, run_code: bool) -> float | None:
    """The score of ``text`` as the answer; None where there is nothing to judge it by, or code is not to be run."""
    by = question.reference
    if question.kind == "rouge":
        return rouge_l(text, by["text"])
    if question.kind == "answer":
        return answer_score(text, by["text"])
    if question.kind == "sql":
        return sql_score(text, by["query"], Path(by["database"]))
    if question.kind == "code" and run_code:
        return code_score(text, by["prompt"], by["tests"], by["entry_point"])
    return None


def write_answers(lines: list[dict[str, Any]], path: Path) -> None:
    """One object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def report(
    lines: list[dict[str, Any]], baseline: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase
) -> dict[str, dict[str, float]]:
    """Spec-Bench's own report, by category and ``overall``: each a mean over questions of tokens per second.

    Its script counts the baseline's tokens by encoding the answers' text again, less one a turn for the token that
    Llama's tokenizer begins with; ``spec_bench`` does so too, ``speedup`` counts what was generated on both sides.
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


def summary(answers: Sequence[Answer]) -> dict[str, Any]:
    """Quality and cost of a configuration over all questions."""
    scores = [one.score for one in answers if one.score is not None]
    joules = [one.joules for one in answers if one.joules is not None]
    likelihoods = [turn for one in answers for turn in one.likelihoods]
    tokens = sum(turn.tokens for turn in likelihoods)
    return {
        "perplexity": perplexity(likelihoods),
        "score": fmean(scores) if scores else None,
        "scored": len(scores),
        "tokens_per_target_forward": tokens / sum(one.forwards for one in answers),
        "joules_per_token": sum(joules) / tokens if len(joules) == len(answers) else NOT_AVAILABLE,
    }
