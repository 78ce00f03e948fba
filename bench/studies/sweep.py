"""``specpilot bench sweep``: heads of the whole grid trained and replayed, resumable, everything cached by content.

Its folder holds the training data, a run folder for each head, the measured costs, and the counters of every rule on
every chunk of held-out prompts, each under a name made of all that it depends on. Imported by its command only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ...controllers.acceptance.acceptance_head import AcceptanceHead
from ...controllers.checkpoints.fingerprint import PairFingerprint
from ...controllers.errors import InputError
from ...controllers.sampling import SamplingParams
from ...data_gen.acceptance import make_acceptance_data
from ...data_gen.dataset import read_dataset, replacing
from ...data_gen.lock import locked
from ...data_gen.prompts import PromptRow, load_prompts
from ...data_gen.settings import AcceptanceDataOptions
from ...infer.decoder import SpeculativeDecoder
from ...infer.machine import machine
from ...train.acceptance import checked_manifest, train_acceptance
from ...train.export import best_head
from ...train.run_folder import read_run
from ...train.settings import AcceptanceTrainingOptions
from ..load import load
from ..micro.cost import bench_cost
from ..store import Store, content_key
from ..sweep_settings import SweepOptions
from ..workload import CostOptions
from .held_out import Chunk, Texts, held_out
from .sweep_tables import Counted, Head, Setting, cost_as_dict, costs_of, replay_all, rules, summarise, table_2

COST_REPEATS = 3


def run_sweep(settings: SweepOptions, folder: Path, cost: Path | None, console: Console) -> dict[str, Any]:
    """Train, replay and summarise; whatever is in ``folder`` already is taken from there.

    Args:
        cost: file of ``specpilot bench cost``; by default the costs are measured, once in this folder.

    Raises:
        InputError: a setting makes no sense, prompts are trained on and judged on, or another process is at it.
    """
    chunks = held_out(settings.prompts, settings.per_domain)
    if cost is not None:
        _read_costs(cost)  # refused now rather than in the end
    if settings.data is None:
        training_prompts(settings)
    with locked(folder, "is measuring there"):
        return _run_sweep(settings, chunks, folder, cost, console)


def _run_sweep(
    settings: SweepOptions, chunks: Sequence[Chunk], folder: Path, cost: Path | None, console: Console
) -> dict[str, Any]:
    decoder = SpeculativeDecoder.from_pretrained(settings.target, settings.draft, device=settings.device)
    data = training_data(settings, folder, console) if settings.data is None else settings.data
    manifest = checked_manifest(data)
    _check_apart(data, chunks)
    heads = train_heads(settings, data, manifest, folder, console)
    texts = Texts(
        decoder,
        SamplingParams(settings.temperature, settings.top_k, settings.top_p),
        settings.max_new_tokens,
        settings.seed,
    )
    columns = (TextColumn("chunks of prompts"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(chunks))
        counted = replayed(settings, texts, chunks, heads, folder, lambda: progress.advance(task))
    document = _costs(settings, folder, cost, console)
    costs = costs_of(document)
    return {
        **summarise(counted, heads, settings.in_domain, costs),
        "table_2": table_2(document),
        "costs": cost_as_dict(costs),
        "training": {name: manifest[name] for name in ("prompts", "mean_acceptance", "dataset_fingerprint")},
        "judged_prompts": sum(len(chunk.prompts) for chunk in chunks),
    }


def replayed(
    settings: SweepOptions,
    texts: Texts,
    chunks: Sequence[Chunk],
    heads: Sequence[Head],
    folder: Path,
    advance: Callable[[], None] = lambda: None,
) -> dict[Setting, Counted]:
    """Counters of ``heads`` and of the rules beside them on held-out texts, or those in ``folder`` already.

    Args:
        advance: called after every chunk.
    """
    return replay_all(
        texts,
        chunks,
        rules(heads, settings.lengths, settings.confidences, settings.thresholds),
        Store(folder / "replayed"),
        texts_identity(texts),
        advance,
    )


def texts_identity(texts: Texts) -> dict[str, Any]:
    """What the held-out texts and their traces depend on, besides the prompts."""
    decoder = texts.decoder
    (draft,) = decoder.drafts
    assert decoder.tokenizer is not None
    return {
        "version": version("specpilot"),
        "pair": PairFingerprint.of(decoder.target.model, draft.model, decoder.tokenizer).as_dict(),
        "sampling": texts.sampling.as_dict(),
        "max_new_tokens": texts.max_new_tokens,
        "seed": texts.seed,
        "device": decoder.target.device.type,
    }


def training_prompts(settings: SweepOptions) -> list[PromptRow]:
    """The training split's first prompts of the in-domain domains.

    Raises:
        InputError: a domain has none.
    """
    rows = [row for row in load_prompts(settings.prompts, split="train") if row.domain in settings.in_domain]
    missing = set(settings.in_domain) - {row.domain for row in rows}
    if missing:
        raise InputError(f"in_domain: {sorted(missing)[0]!r} is no domain of {settings.prompts}'s training split")
    return rows[: settings.train_prompts]


def training_data(settings: SweepOptions, folder: Path, console: Console) -> str:
    """A dataset of :func:`training_prompts`; made, or gone on with."""
    text = "".join(json.dumps(vars(row), ensure_ascii=False) + "\n" for row in training_prompts(settings))
    source = folder / f"prompts-{hashlib.sha256(text.encode()).hexdigest()[:20]}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    if not source.exists():
        with replacing(source) as temporary:
            temporary.write_text(text, encoding="utf-8")
    asked = AcceptanceDataOptions(
        target=settings.target,
        draft=settings.draft,
        prompts=str(source),
        max_new_tokens=settings.max_new_tokens,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        seed=settings.seed,
        device=settings.device,
    )
    key = content_key({"version": version("specpilot"), **vars(asked)})
    return str(make_acceptance_data(asked, folder / f"data-{key}", console))


def train_heads(
    settings: SweepOptions, data: str, manifest: dict[str, Any], folder: Path, console: Console
) -> list[Head]:
    """A head for each depth and weight, trained or taken from the folder; all read the same hidden states."""
    base = AcceptanceTrainingOptions(
        data=data,
        draft=settings.draft,
        mixing=settings.mixing,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        lr=settings.lr,
        validation_fraction=settings.validation_fraction,
        seed=settings.seed,
        cache_features=True,
        device=settings.device,
    )
    common = {
        "version": version("specpilot"), "data": manifest["dataset_fingerprint"],
        **{name: value for name, value in vars(base).items() if name not in ("data", "depth", "w_rej")},
    }  # fmt: skip
    (folder / "heads").mkdir(parents=True, exist_ok=True)
    features = folder / "heads" / f"features-{content_key(common)}.npy"
    heads = []
    for w_rej in settings.weights:
        for depth in settings.depths:
            config = replace(base, depth=depth, w_rej=w_rej)
            output = folder / "heads" / content_key({**common, "depth": depth, "w_rej": w_rej})
            console.print(f"head D={depth} w_rej={w_rej:g}")
            train_acceptance(config, output=output, resume=True, features=features)
            head, metrics = best_head(read_run(output, AcceptanceTrainingOptions))
            heads.append(Head(depth, w_rej, head, weights_digest(head), metrics))
    features.unlink(missing_ok=True)  # large, and quickly made again
    return heads


def weights_digest(head: AcceptanceHead) -> str:
    """SHA-256 of a head's weights."""
    digest = hashlib.sha256()
    for name, tensor in head.state_dict().items():
        digest.update(f"{name} {list(tensor.shape)}".encode() + tensor.cpu().numpy().tobytes())
    return digest.hexdigest()


def _costs(settings: SweepOptions, folder: Path, file: Path | None, console: Console) -> dict[str, Any]:
    """The document of ``bench cost``: the one in ``file``, or one measured for this folder."""
    if file is not None:
        return _read_costs(file)
    work = CostOptions(
        target=settings.target, draft=settings.draft, device=settings.device, temperature=settings.temperature,
        top_k=settings.top_k, top_p=settings.top_p,
    )  # fmt: skip
    store, identity = Store(folder / "costs"), {"work": vars(work), "machine": machine(), "repeats": COST_REPEATS}
    found = store.get(identity)
    if found is None:
        console.print("costs of the pair on this machine")
        decoder, prompts = load(work)
        found = bench_cost(decoder, prompts, repeats=COST_REPEATS, sampling=work.sampling)
        store.put(identity, found)
    return dict(found)


def _read_costs(file: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        table_2(document)
    except OSError as error:
        raise InputError(f"cost={str(file)!r}: cannot be read ({error.strerror})") from error
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"cost={str(file)!r}: holds no measured costs; write it with 'specpilot bench cost --output FILE'"
        ) from error
    return document


def _check_apart(data: str, chunks: Sequence[Chunk]) -> None:
    judged = {row.prompt for chunk in chunks for row in chunk.prompts}
    both = next((row.prompt_id for row in read_dataset(data) if row.prompt in judged), None)
    if both is not None:
        raise InputError(
            f"data={data!r}: prompt {both!r} would be trained on and judged on; use other training prompts"
        )
