"""``python -m experiments real-prompts``: prompts of five kinds for a chat model.

The kinds are chat, code, maths, summarising and rewriting.

They are put together from sources whose licences bind nothing that is derived (MIT, CC-BY, Apache-2.0, BSD, public
domain), and from topics written for it. A draft is trained on the target's answers to them; those that are held out are
for measuring.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from specpilot.common.errors import InputError
from specpilot.common.options import Count

from .. import FolderOptions

QUESTIONS = (
    "Explain {} to a child.", "What is {}, and why does it matter?", "Give me five interesting facts about {}.",
    "Write a short story about {}.", "What are the advantages and disadvantages of {}?", "How did {} begin?",
    "Write an e-mail to a friend about {}.", "What should a beginner know about {}?", "Write a poem about {}.",
    "List the most common mistakes people make with {}.", "How would you teach {} in one hour?",
    "Describe {} in one paragraph.",
)  # fmt: skip
TOPICS = (
    "photosynthesis", "gravity", "the water cycle", "volcanoes", "the solar system", "black holes", "DNA", "vaccines",
    "antibiotics", "sleep", "the human heart", "nutrition", "running", "swimming", "yoga", "chess", "football",
    "tennis", "painting", "photography", "the piano", "jazz", "opera", "theatre", "cinema", "novels", "poetry",
    "Shakespeare", "ancient Rome", "ancient Egypt", "the Middle Ages", "the Renaissance", "the French Revolution",
    "the printing press", "the steam engine", "electricity", "the telephone", "computers", "the internet",
    "artificial intelligence", "machine learning", "cryptography", "open-source software", "databases", "programming",
    "robots", "drones", "electric cars", "bicycles", "trains", "aeroplanes", "ships", "bridges", "skyscrapers",
    "gardening", "farming", "bees", "dogs", "cats", "whales", "birds", "dinosaurs", "rainforests", "deserts",
    "oceans", "glaciers", "rivers", "climate change", "solar energy", "wind power", "nuclear power", "recycling",
    "money", "banks", "inflation", "taxes", "insurance", "saving", "small businesses", "marketing", "negotiation",
    "public speaking", "job interviews", "teamwork", "time management", "meetings", "remote work", "friendship",
    "parenting", "school", "universities", "languages", "translation", "handwriting", "maps", "travel", "camping",
    "cooking", "bread", "coffee", "tea", "cheese", "chocolate", "festivals", "museums", "libraries", "newspapers",
    "democracy", "elections", "human rights", "the law", "philosophy", "ethics", "happiness", "memory", "dreams",
    "mathematics", "statistics", "probability", "geometry",
)  # fmt: skip
SUMMARISE = (
    "Summarize the following text in two sentences.\n\n{}", "What are the main points of this text?\n\n{}",
    "Give this text a title and a summary of one paragraph.\n\n{}",
)  # fmt: skip
REWRITE = (
    "Rewrite the following text in simple, modern English.\n\n{}", "Correct and improve this text.\n\n{}",
    "Rewrite this text in the present tense.\n\n{}", "Rewrite this as a formal report.\n\n{}",
)  # fmt: skip
PASSAGE = 700  # most characters of a text to summarise or rewrite
PER_KIND, HELD_OUT_PER_KIND = 1600, 60
PROMPTS, HELD_OUT = "prompts.jsonl", "held-out.jsonl"
SOURCES = {"code": ("mbpp", "nl2bash", "python_functions"), "maths": ("gsm8k", "svamp", "aqua", "math500")}


@dataclass(frozen=True, kw_only=True)
class PromptOptions:
    """Prompts.

    Attributes:
        data: Folder of JSON Lines files that the prompts are taken from: mbpp, nl2bash, python_functions, gsm8k, svamp,
            aqua, math500, books and self_instruct.
        per_kind: Number of prompts of each kind.
        held_out: Number of held-out prompts of each kind.
    """

    data: Path
    per_kind: Count = PER_KIND
    held_out: Count = HELD_OUT_PER_KIND


def main(options: PromptOptions, folder: FolderOptions) -> None:
    """Write the prompts on which the draft of SmolLM2-135M-Instruct is trained, and the held-out ones."""
    write_prompts(options.data, folder.output, options.per_kind, options.held_out)
    for name in (PROMPTS, HELD_OUT):
        print(folder.output / name)


def write_prompts(data: Path, folder: Path, per_kind: int, held_out: int, seed: int = 0) -> None:
    """Write ``per_kind`` prompts of each kind to prompts.jsonl in ``folder``, and others to held-out.jsonl.

    The ``held_out`` prompts of each kind are about passages and problems that are in none of the first. Chat prompts
    share topics with them.

    Args:
        data: folder of JSON Lines files with a prompt in each row.

    Raises:
        InputError: a file is missing in ``data``.
    """
    chooser = random.Random(seed)
    by_kind = _by_kind(data)
    chosen = {kind: chooser.sample(texts, min(per_kind, len(texts))) for kind, texts in by_kind.items()}
    rows = [row for kind, texts in chosen.items() for row in _rows(kind, "", texts)]
    chooser.shuffle(rows)
    subjects = {_subject(row["prompt"]) for row in rows}
    held_out_rows = []
    for kind, texts in by_kind.items():
        unseen = [*dict.fromkeys(text for text in texts if _subject(text) not in subjects)]
        held_out_rows += _rows(kind, "held-out-", chooser.sample(unseen, min(held_out, len(unseen))))
    folder.mkdir(parents=True, exist_ok=True)
    for name, written in ((PROMPTS, rows), (HELD_OUT, held_out_rows)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in written), encoding="utf-8")


def _rows(kind: str, prefix: str, texts: list[str]) -> list[dict[str, str]]:
    return [{"id": f"{prefix}{kind}-{number}", "domain": kind, "prompt": text} for number, text in enumerate(texts)]


def _subject(prompt: str) -> str:
    """Return the subject of ``prompt``: the text after its first blank line, such as a passage, or else all."""
    return prompt.partition("\n\n")[2] or prompt


def _by_kind(data: Path) -> dict[str, list[str]]:
    passages = [text[:PASSAGE].rsplit(".", 1)[0] + "." for text in _column(data, "books", "response")]
    passages += [text[:PASSAGE].rsplit(".", 1)[0] + "." for text in _column(data, "books", "prompt")]
    kinds = {
        kind: [text for name in names for text in _column(data, name, "prompt")] for kind, names in SOURCES.items()
    }
    chat = [question.format(topic) for question, topic in product(QUESTIONS, TOPICS)]
    kinds["chat"] = chat + [text for text in _column(data, "self_instruct", "prompt") if len(text) < PASSAGE]
    kinds["summarising"] = [frame.format(text) for frame, text in product(SUMMARISE, passages)]
    kinds["rewriting"] = [frame.format(text) for frame, text in product(REWRITE, passages)]
    kinds["code"] = [text for text in kinds["code"] if len(text) < 2 * PASSAGE]
    return kinds


def _column(data: Path, name: str, column: str) -> Iterator[str]:
    path = data / f"{name}.jsonl"
    if not path.is_file():
        raise InputError(f"data={str(data)!r}: has no file {path.name}; see --help for the files that it must have")
    with open(path, encoding="utf-8") as lines:
        yield from (json.loads(line)[column] for line in lines)
