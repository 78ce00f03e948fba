"""The model card of a tiny encoder-decoder: data, licences, tokens seen, held-out loss, exact match, agreement."""

from __future__ import annotations

import json
from pathlib import Path

from ..tiny.card import count_parameters
from ..tiny.corpus import Document, count_sources
from .evaluation import Agreement
from .settings import TARGET, TinyT5Options, draft_name


def write_card(
    folder: Path,
    name: str,
    settings: TinyT5Options,
    tokens: int,
    read: list[Document],
    losses: dict[str, float],
    exact_match: dict[str, float],
    agreements: list[Agreement],
) -> None:
    """Write ``README.md`` into the model's folder."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    task = next((task for task in settings.sources if name == draft_name(task)), None)
    role = f"draft for {task}" if task else f"target for {' and '.join(settings.sources)}"
    draft = draft_name(task or next(iter(settings.sources)))
    layers = f"encoder {config['num_layers']}, decoder {config['num_decoder_layers']} layers × {config['d_model']}"
    lines = [
        "---",
        "license: apache-2.0",
        "library_name: transformers",
        "pipeline_tag: text2text-generation",
        "---",
        "",
        f"# {name}",
        "",
        f"A tiny T5-architecture encoder-decoder ({role}) for developing and testing speculative decoding.",
        "It imitates the form of its training text, and its answers are not to be relied on: do not run its commands.",
        "",
        "```python",
        "from specpilot import SpeculativeDecoder",
        "",
        f'decoder = SpeculativeDecoder.from_pretrained("{TARGET}", "{draft}")',
        r'print(decoder.generate("Write a bash command for this task.\nTask: Count the files in /tmp\nCommand:").text)',
        "```",
        "",
        f"* parameters: {count_parameters(folder):,} ({layers}; gated feed-forward, relative positions, "
        "embeddings tied to the head), stored in bfloat16",
        f"* vocabulary: the {config['vocab_size']} entries of `{settings.vocabulary}`, from whose "
        "embeddings these began; the chat template adds nothing to the words",
        f"* trained on prompts of up to {settings.prompt_tokens} tokens and outputs of up to {settings.output_tokens}",
        f"* tokens seen in training, prompts and outputs: {tokens:,}"
        + (
            ", all of them training prompts (of this text and built-in) and the target's own answers to these, "
            "with the target's distributions as labels"
            if task
            else ""
        ),
        f"* command: `python -m experiments tiny-t5 --data <folder of text> --seed {settings.seed}`",
        "",
        "## Training text",
        "",
        "One row in twenty of each source, chosen by a hash of its id, was held out."
        + (" Only the prompts were read; the outputs are the target's." if task else ""),
        "",
        "| source | licence | rows |",
        "|---|---|---|",
        *(f"| {source} | {licence} | {rows} |" for source, licence, rows in count_sources(read)),
        "",
        "## Held-out loss",
        "",
        "Cross-entropy of the reference outputs, nats a token.",
        "",
        "| task | loss |",
        "|---|---|",
        *(f"| {name} | {loss:.3f} |" for name, loss in losses.items()),
    ]
    if not task:
        lines += [
            "",
            "## Exact match",
            "",
            f"Share of greedy outputs that are the reference word for word, on up to {settings.held_out_prompts}",
            "held-out rows a task.",
            "",
            "| task | exact match |",
            "|---|---|",
            *(f"| {name} | {share:.3f} |" for name, share in exact_match.items()),
        ]
    if agreements:
        lines += [
            "",
            "## Agreement with the target",
            "",
            "On the target's outputs sampled at temperature 1, top-k 50, for prompts that neither has seen:",
            "a = Σ min(p, q), the probability that a token drawn from this draft is accepted; ROUGE-L of greedy",
            "outputs against the target's.",
            "",
            "| task | prompts from | prompts | mean a | share of positions with a < 0.3 | ROUGE-L |",
            "|---|---|---|---|---|---|",
            *(
                f"| {a.task} | {a.origin} | {a.prompts} | {a.overlap:.3f} | {a.hard:.3f} | {a.rouge_l:.3f} |"
                for a in agreements
            ),
        ]
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
