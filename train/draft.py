"""``specpilot train draft``: distils a target into a draft of its layers or an existing draft; writes a run folder.

``specpilot trim-vocabulary`` restricts the output of an existing draft to the most frequent tokens of some text.
"""

from __future__ import annotations

import hashlib
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..common.console import stderr_console
from ..common.errors import InputError, counted, naming
from ..controllers.checkpoints.fingerprint import PairFingerprint, model_fingerprint, tokenizer_fingerprint
from ..controllers.sampling import SamplingParams
from ..data_gen.dataset import SCHEMA_VERSION, Manifest, day_in
from ..data_gen.documents import Document, most_frequent, read_documents
from ..data_gen.rows import name_of
from ..infer.prompting import day_of
from ..models.eagle import find_state_input
from ..models.loading.draft_folder import SharedTarget, check_output_folder, find_shared_target, save_draft
from ..models.loading.eagle3_folder import save_eagle3
from ..models.loading.generation_defaults import model_stop_tokens
from ..models.loading.names import load_model, load_tokenizer
from ..models.loading.transformers_folder import save_transformers_draft
from ..models.trimmed_head import TrimmedHead, kept_tokens, trim_head
from .best_epoch import BestEpoch
from .draft_model import freeze_shared, initial_draft, load_initial, shared_with
from .draft_module import DraftDataModule, DraftModule, require_weights
from .fitting import Training, TrainingResult, fit, train_run
from .options import DraftTrainingOptions, TrimOptions
from .run_folder import DATASET, STATES, Run
from .target_states import StateFolder

KIND = "draft"


def train_draft(settings: DraftTrainingOptions, output: str | Path, *, resume: bool = False) -> TrainingResult:
    """Train a draft in the run folder ``output``, and return the result of the training.

    Arguments and errors are those of :func:`~.acceptance.train_acceptance`; ``data`` may also be a
    ``datasets.Dataset``.

    Raises:
        InputError: also if the target or the data cannot be used.
    """
    with naming("target", settings.target):
        target = load_model(
            settings.target, dtype=settings.dtype, device=settings.device,
            trust_remote_code=settings.trust_remote_code, decoder_only=True,
        )  # fmt: skip
        tokenizer = load_tokenizer(settings.target, trust_remote_code=settings.trust_remote_code)
    fingerprint = model_fingerprint(target)
    stops, day = model_stop_tokens(target, tokenizer), day_of(tokenizer, day_in(Path(output) / DATASET))
    documents = read_documents(settings.folders, tokenizer, settings, stops=stops, day=day, target=fingerprint)
    if not all(isinstance(source, str) for source in settings.folders):  # rows in memory have no name for a file
        settings = replace(settings, data=tuple(map(name_of, settings.folders)))
    initial_fingerprint, draft_tokens = None, None
    if settings.initial is not None:
        initial = load_initial(target, tokenizer, settings)
        initial_fingerprint, draft_tokens = model_fingerprint(initial), kept_tokens(initial)
    elif settings.vocabulary is not None:
        among = range(len(target.get_output_embeddings().weight))
        draft_tokens = most_frequent(documents, settings.vocabulary, among, stops, "vocabulary")
    pair = PairFingerprint(fingerprint, initial_fingerprint, tokenizer_fingerprint(tokenizer))

    def load() -> Training:
        draft = initial_draft(target, settings, draft_tokens) if settings.initial is None else initial
        unread = 0 if find_state_input(draft) is None else settings.positions
        data = DraftDataModule(documents, settings, unread=unread)
        return lambda run: _train(run, target, draft, data)

    dataset = replace(_manifest(settings, pair, documents, draft_tokens), day=day)
    return train_run(output, settings, dataset, load, resume=resume)


def _manifest(
    settings: DraftTrainingOptions, pair: PairFingerprint, documents: list[Document], draft_tokens: list[int] | None
) -> Manifest:
    """Return the manifest of the data for the run folder."""
    digest = hashlib.sha256((pair.draft or "").encode())
    for document in documents:
        later = f"{document.prompts}\0" if document.prompts else ""
        digest.update(f"{document.id}\0{document.start}\0{document.tokens}\0{later}".encode())
    fingerprint = {name: value for name, value in pair.to_dict().items() if value is not None}
    return Manifest(
        schema_version=SCHEMA_VERSION, kind=KIND, predictor=KIND, target=settings.target, draft=settings.initial,
        fingerprint=fingerprint, sampling=SamplingParams(1.0, None), kept_tokens=draft_tokens,
        dataset_fingerprint=digest.hexdigest(),
    )  # fmt: skip


def _train(
    run: Run[DraftTrainingOptions], target: PreTrainedModel, draft: PreTrainedModel, data: DraftDataModule
) -> BestEpoch:
    """Train ``draft``, and return the best epoch."""
    settings = run.settings
    left_out = freeze_shared(draft, target, settings, run.dataset.fingerprint["target"])
    trained = sum(parameter.numel() for parameter in draft.parameters() if parameter.requires_grad)
    module = DraftModule(settings, draft, target, left_out=left_out, steps=data.total_steps)
    print(
        f"{counted(int(data.training.learned.sum()), 'token')} to train on, {counted(data.total_steps, 'step')}; "
        f"{trained:,} parameters are trained"
    )
    states = StateFolder(run.folder / STATES, len(data.windows.tokens))
    if settings.cache_states:
        states.fill(module.teacher, data.windows, stderr_console())
        data.states = states
    best = fit(run, module, data)
    states.remove()
    return best


def export_draft(
    run: Run[DraftTrainingOptions],
    weights: dict[str, Tensor],
    output: Path,
    *,
    whole_vocabulary: bool = False,
    overwrite: bool = False,
) -> None:
    """Write the best ``weights`` of ``run`` as a draft folder.

    A draft of the whole vocabulary that reads tokens alone becomes a folder of transformers in the target's stored
    precision. Other drafts are stored in bfloat16.

    Args:
        run: the run.
        weights: the trained weights.
        output: the folder to create.
        whole_vocabulary: whether a trimmed output projection is replaced by the target's.
        overwrite: whether an existing draft is replaced.

    Raises:
        InputError: the target or the initial draft cannot be loaded or has changed; ``output`` is not free; or a
            trimmed output projection is not the target's.
    """
    settings = run.settings
    target = load_model(
        settings.target, dtype="auto", device="cpu", trust_remote_code=settings.trust_remote_code, decoder_only=True
    )
    if model_fingerprint(target) != run.dataset.fingerprint["target"]:
        raise InputError(
            f"target={settings.target!r}: is not the target that the draft was trained for; restore that target"
        )
    tokenizer = load_tokenizer(settings.target, trust_remote_code=settings.trust_remote_code)
    if settings.initial is None:
        draft = initial_draft(target, settings, run.dataset.kept_tokens)
    else:
        draft = load_initial(target, tokenizer, settings)
        if model_fingerprint(draft) != run.dataset.fingerprint["draft"]:
            raise InputError(
                f"initial={settings.initial!r}: is not the draft that the run began with; restore that draft"
            )
    shared = shared_with(draft, target, settings, run.dataset.fingerprint["target"])
    require_weights(draft, weights)
    draft.load_state_dict(weights, strict=False)
    if whole_vocabulary:
        _extend_output(draft, target, shared)
    if find_state_input(draft) is not None:
        save_eagle3(
            draft, output, target, name=settings.target, speculative_tokens=settings.positions, dtype=torch.bfloat16,
            overwrite=overwrite,
        )  # fmt: skip
    elif kept_tokens(draft) is None:
        save_transformers_draft(
            draft, output, tokenizer, target, name=settings.target, dtype=target.dtype, overwrite=overwrite
        )
    else:
        save_draft(draft, output, tokenizer, target=shared, dtype=torch.bfloat16, overwrite=overwrite)


def _extend_output(draft: PreTrainedModel, target: PreTrainedModel, shared: SharedTarget | None) -> None:
    """Replace a trimmed output projection of ``draft`` by the whole projection of ``target``.

    Args:
        draft: the draft.
        target: its target.
        shared: the weights of the draft that are the target's.

    Raises:
        InputError: the trimmed projection does not consist of rows of the target's.
    """
    draft_tokens = kept_tokens(draft)
    if draft_tokens is None:
        return
    if shared is None or "output" not in shared.weights:
        raise InputError(
            f"whole_vocabulary=True: the draft has an output projection of its own onto "
            f"{counted(len(draft_tokens), 'token')}; leave it out, or train a draft with --vocabulary null"
        )
    draft.set_output_embeddings(deepcopy(target.get_output_embeddings()).float())


def trim_vocabulary(options: TrimOptions) -> Path:
    """Write a copy of a draft that proposes only the most frequent tokens of some texts, and return its folder.

    Raises:
        InputError: the draft or the data cannot be read; the draft reads more than text, has quantised weights, is an
            EAGLE-3 draft, or proposes fewer tokens than ``options.keep``; or ``options.output`` is not free.
    """
    check_output_folder(options.output, options.overwrite)
    trust = options.trust_remote_code
    with naming("draft", options.draft):
        model = load_model(
            options.draft, dtype="auto", device="cpu", trust_remote_code=trust, decoder_only=True, target=options.target
        )
    if model.config.get_text_config(decoder=True) is not model.config:
        raise InputError(
            f"{options.draft}: is a {model.config.model_type}, which reads more than text; choose a language model"
        )
    if vars(model.config).get("quantization_config") is not None:
        raise InputError(f"{options.draft}: has quantised weights; trim the model in full precision")
    if find_state_input(model) is not None:
        raise InputError(
            f"{options.draft}: is an EAGLE-3 draft, which was trained with its vocabulary; choose another draft"
        )
    tokenizer = load_tokenizer(options.draft, trust_remote_code=trust)
    head = model.get_output_embeddings()
    among = head.tokens.tolist() if isinstance(head, TrimmedHead) else [*range(len(head.weight))]
    stops = model_stop_tokens(model, tokenizer)
    documents = read_documents(options.folders, tokenizer, options, stops=stops)
    trim_head(model, most_frequent(documents, options.keep, among, stops, "keep"))
    target = find_shared_target(model)
    return save_draft(model, options.output, tokenizer, target=target, dtype=model.dtype, overwrite=options.overwrite)
