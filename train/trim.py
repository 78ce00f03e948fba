"""``specpilot trim-vocabulary``: restricts the output of an existing draft to the most frequent tokens of some text."""

from __future__ import annotations

from pathlib import Path

from ..common.errors import InputError
from ..data_gen.documents import most_frequent, read_documents
from ..infer.loading.draft_folder import check_place, save_draft, shared_of
from ..infer.loading.generation_defaults import stop_tokens_of
from ..infer.loading.names import load_model, load_tokenizer
from ..infer.models.eagle import Eagle3Input, state_input_of
from ..infer.models.trimmed_head import TrimmedHead, trim_head
from .options import TrimOptions


def trim_vocabulary(options: TrimOptions) -> Path:
    """Write the trimmed draft; returns its folder.

    Raises:
        InputError: the draft or the data cannot be read, the draft has fewer tokens, or the output is not free.
    """
    check_place(options.output, options.overwrite)
    trust = options.trust_remote_code
    model = load_model(
        options.draft, dtype="auto", device="cpu", trust_remote_code=trust, decoder_only=True, target=options.target
    )
    if model.config.get_text_config(decoder=True) is not model.config:
        raise InputError(f"{options.draft}: a {model.config.model_type} reads more than text; give a language model")
    if vars(model.config).get("quantization_config") is not None:
        raise InputError(f"{options.draft}: its weights are quantised; trim the model they were made of")
    if isinstance(state_input_of(model), Eagle3Input):
        raise InputError(
            f"{options.draft}: an EAGLE-3 draft, which was trained with its vocabulary; take another draft"
        )
    tokenizer = load_tokenizer(options.draft, trust_remote_code=trust)
    head = model.get_output_embeddings()
    among = head.tokens.tolist() if isinstance(head, TrimmedHead) else [*range(len(head.weight))]
    stops = stop_tokens_of(model, tokenizer)
    documents = read_documents(options.folders, tokenizer, options, stops=stops)
    trim_head(model, most_frequent(documents, options.keep, among, stops, "keep"))
    target = shared_of(model)
    return save_draft(model, options.output, tokenizer, target=target, dtype=model.dtype, overwrite=options.overwrite)
