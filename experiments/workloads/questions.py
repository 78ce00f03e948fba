"""``specpilot bench questions``: a workload's questions answered by a configuration and by autoregressive decoding.

Each writes a file of answers in the format of Spec-Bench (Xia et al. 2024), which its report scripts read.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from specpilot.common.files import replacing
from specpilot.common.machine import machine
from specpilot.compare.energy import NOT_AVAILABLE, Meter, counters
from specpilot.compare.runner import Run, clocked, interleave_stored
from specpilot.compare.store import Store
from specpilot.controllers.checkpoints.fingerprint import PairFingerprint
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.drafters.beams import Beams
from specpilot.infer.loading.controllers import length_digest

from ..options import QuestionsOptions
from ..scoring.answer import answer_score
from ..scoring.code import code_score
from ..scoring.perplexity import Likelihood, likelihood
from ..scoring.rouge import rouge_l
from ..scoring.sql import sql_score
from ..scoring.tasks import Question, load_questions
from .questions_report import spec_bench_report, summary

AUTOREGRESSIVE = "autoregressive"


@dataclass(frozen=True)
class Answer:
    """The answer to one question.

    Attributes:
        line: the answer in Spec-Bench's format.
        likelihoods: likelihood of each turn under the target, at temperature 1 and without truncation.
        forwards: number of target forwards.
        joules: energy of all devices; None without a counter.
    """

    line: dict[str, Any]
    likelihoods: list[Likelihood]
    forwards: int
    joules: float | None

    @property
    def text(self) -> str:
        """Text of the last turn."""
        return str(self.line["choices"][0]["turns"][-1])

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Answer:
        return cls(**(data | {"likelihoods": [Likelihood(**one) for one in data["likelihoods"]]}))


def bench_questions(work: QuestionsOptions, console: Console) -> dict[str, Any]:
    """Answer the questions with and without drafts, and write the two files of answers into ``work.output``.

    Raises:
        InputError: a question, a model or a rule does not fit, or another process writes to the folder.
    """
    verifier = work.verifier
    with Store(work.output) as store:
        questions = load_questions(
            work.task, work.prompts, column=work.column, split=work.split, limit=work.limit, skip=work.skip,
            domains=work.domains, databases=work.databases,
        )  # fmt: skip
        if any(question.kind == "rouge" for question in questions):
            rouge_l("", "")  # fails before decoding if rouge-score is missing
        drafting = SpeculativeDecoder.from_pretrained(
            work.target, work.draft, length=work.length, verifier=verifier, tree=work.tree,
            beams=None if work.beams is None else Beams(work.beams), dtype=work.dtype,
            device=work.device, trust_remote_code=work.trust_remote_code,
        )  # fmt: skip
        tokenizer = drafting.tokenizer
        assert tokenizer is not None, "decoder was not loaded by name"
        meter = Meter(counters(drafting.target.device.type))
        idle = meter.idle_watts()
        rule = {
            "length": str(work.length), "content": length_digest(work.length), "verifier": verifier,
            "tree": work.tree, "beams": work.beams,
        }  # fmt: skip
        answers = answer_all(
            {AUTOREGRESSIVE: SpeculativeDecoder(drafting.target, None, tokenizer), verifier: drafting},
            questions, work, meter=meter, store=store, console=console,
            identities={AUTOREGRESSIVE: identity_of(work, drafting), verifier: identity_of(work, drafting) | rule},
        )  # fmt: skip
        lines = {name: [answer.line for answer in of_name] for name, of_name in answers.items()}
        files = {name: work.output / f"{name.replace(':', '-')}.jsonl" for name in lines}
        for name, file in files.items():
            write_answers(lines[name], file)
    console.print(f"answers in Spec-Bench's format: {', '.join(map(str, files.values()))}")
    scores = {
        name: [score(q, one.text, run_code=work.run_code) for q, one in zip(questions, of_name, strict=True)]
        for name, of_name in answers.items()
    }
    return {
        "speed": spec_bench_report(lines[verifier], lines[AUTOREGRESSIVE], tokenizer),
        "quality": {name: summary(of_name, scores[name]) for name, of_name in answers.items()},
        "idle_watts": NOT_AVAILABLE if idle is None else idle,
    }


def identity_of(work: QuestionsOptions, decoder: SpeculativeDecoder) -> dict[str, Any]:
    """Everything that answers depend on, except the question and the decoding rule."""
    (draft,) = decoder.drafts
    assert decoder.tokenizer is not None
    return {
        "sampling": work.sampling,
        "chat": work.chat,
        "system": work.system,
        "dtype": work.dtype,
        "device": str(decoder.target.device),
        "machine": machine(),
        "pair": PairFingerprint.of(decoder.target.model, draft.model, decoder.tokenizer).as_dict(),
    }


def answer_all(
    decoders: Mapping[str, SpeculativeDecoder],
    questions: Sequence[Question],
    work: QuestionsOptions,
    *,
    meter: Meter,
    store: Store,
    identities: Mapping[str, Mapping[str, Any]],
    console: Console,
) -> dict[str, list[Answer]]:
    """Answer every question with every decoder, in turn; answers in ``store`` are reused.

    Args:
        identities: for each decoder, everything its answers depend on except the question and its index.
    """

    def run(name: str, decoder: SpeculativeDecoder) -> Run[Answer]:
        return lambda index, repeat: answer_question(name, decoder, questions[index], index, work, meter)

    found = interleave_stored(
        {name: run(name, decoder) for name, decoder in decoders.items()}, len(questions), console,
        store=store, label="answers",
        identity=lambda name, index: {**identities[name], "question": asdict(questions[index]), "seed": index},
        record=lambda name, index, timed: asdict(timed.value),
    )  # fmt: skip
    return {name: [Answer.from_dict(record) for record in records] for name, records in found.items()}


def answer_question(
    name: str, decoder: SpeculativeDecoder, question: Question, seed: int, work: QuestionsOptions, meter: Meter
) -> Answer:
    """Answer all turns of a question; the decoder's answers are part of the prompts of later turns."""
    messages: list[dict[str, str]] = []
    choice: dict[str, Any] = {
        "index": 0, "turns": [], "decoding_steps": [], "new_tokens": [], "wall_time": [], "accept_lengths": [],
    }  # fmt: skip
    likelihoods, joules = [], []
    for text in question.turns:
        messages.append({"role": "user", "content": text})
        prompt = list(messages) if work.chat else "\n\n".join(message["content"] for message in messages)
        given = {"prompt": prompt, "seed": seed, "system": work.system, **work.sampling}
        timed = clocked(lambda given=given: decoder.generate(**given), meter)  # type: ignore[misc]
        generation = timed.value
        joules.append(timed.joules)
        likelihoods.append(likelihood(decoder.target, generation.prompt_tokens, generation.tokens))
        messages.append({"role": "assistant", "content": generation.text})
        choice["turns"].append(generation.text)
        choice["decoding_steps"].append(generation.stats.n_target_forwards)
        choice["new_tokens"].append(len(generation.tokens))
        choice["wall_time"].append(timed.seconds)
        choice["accept_lengths"] += [len(r.emitted) for r in generation.rounds]
    line = {
        "question_id": question.id,
        "category": question.category,
        "answer_id": hashlib.sha256(json.dumps([name, question.id, choice["turns"]]).encode()).hexdigest()[:22],
        "model_id": name,
        "choices": [choice],
        "tstamp": time.time(),
    }
    measured = [value for value in joules if value is not None]
    total = sum(measured) if len(measured) == len(joules) else None
    return Answer(line, likelihoods, sum(choice["decoding_steps"]), total)


def score(question: Question, text: str, *, run_code: bool) -> float | None:
    """Score of ``text`` as the answer, in [0, 1]; None without a reference, or for code if ``run_code`` is False."""
    reference = question.reference
    if question.kind == "rouge":
        return rouge_l(text, reference["text"])
    if question.kind == "answer":
        return answer_score(text, reference["text"])
    if question.kind == "sql":
        return sql_score(text, reference["query"], Path(reference["database"]))
    if question.kind == "code" and run_code:
        return code_score(text, reference["prompt"], reference["tests"], reference["entry_point"])
    return None


def write_answers(lines: list[dict[str, Any]], path: Path) -> None:
    """Write one JSON object per line."""
    with replacing(path) as file:
        file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
