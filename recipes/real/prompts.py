"""Prompts of five kinds for a chat model: chat, code, maths, summarising and rewriting.

They are put together from sources whose licences bind nothing that is derived (MIT, CC-BY, Apache-2.0, BSD, public
domain), and from topics written for it. A draft is trained on the target's answers to them; those whose hash holds them
out are what it is measured on.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path

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
SOURCES = {"code": ("mbpp", "nl2bash", "python_functions"), "maths": ("gsm8k", "svamp", "aqua", "math500")}


def write_prompts(data: Path, output: Path, per_kind: int, seed: int = 0) -> int:
    """Write ``per_kind`` prompts of each kind to ``output``, in random order; the number of prompts.

    Args:
        data: folder of JSON Lines files with a prompt in each row.
    """
    chooser = random.Random(seed)
    rows = []
    for kind, prompts in _by_kind(data).items():
        chosen = chooser.sample(prompts, min(per_kind, len(prompts)))
        rows += [{"id": f"{kind}-{number}", "domain": kind, "prompt": text} for number, text in enumerate(chosen)]
    chooser.shuffle(rows)
    output.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return len(rows)


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
    with open(data / f"{name}.jsonl", encoding="utf-8") as lines:
        yield from (json.loads(line)[column] for line in lines)
