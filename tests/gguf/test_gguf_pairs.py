"""GGUF pairs: the text of the same pair in transformers, llama.cpp's own greedy text; files and controllers."""

import ctypes
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from specpilot.cli import main as cli
from specpilot.common.errors import InputError
from specpilot.controllers.checkpoints.fingerprint import model_fingerprint, tokenizer_fingerprint
from specpilot.controllers.length import Fixed
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.prompts import load_prompts
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.drafters.beams import Beams
from specpilot.models import output_embedding
from specpilot.models.gguf_model import GgufModel
from specpilot.models.llama_context import library
from specpilot.models.loading.names import load_any_model, load_model, load_tokenizer

from experiments.__main__ import main as experiments
from experiments.gguf import write_gguf
from experiments.router.single_arm import SingleArm
from experiments.studies.llama_loops import LlamaLoop

from ..helpers.gguf import random_llama

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (extra gguf): run make test-gguf")

PROMPT = "How do I list files by size?"
SAMPLE = "It's 2024: 3,500 crêpes à 7 € — café?\n\n\tfor i in range(12):  print([i, 345])"  # text for tokenizers
TOKENIZER_KEY = "tokenizer.huggingface.json"  # of a file that carries transformers' tokenizer as well


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped pair as GGUF files."""
    folder = tmp_path_factory.mktemp("gguf")
    for name in ("tiny", "tiny-draft", "tiny-draft-math"):
        write_gguf(name, folder / f"{name}.gguf", "f32")
    write_gguf("tiny", folder / "tiny-bf16.gguf", "bf16")
    return folder


def decoder(folder: Path, **options: Any) -> SpeculativeDecoder:
    names = {"target": folder / "tiny.gguf", "draft": folder / "tiny-draft.gguf"}
    return SpeculativeDecoder.from_pretrained(**names | options)


WAYS: list[dict[str, Any]] = [
    {"length": 4},
    {"length": 4, "target": "tiny"},  # with a draft in a GGUF file
    {"length": 4, "draft": "tiny-draft"},
    {"length": "cumulative-confidence:0.4"},
    {"verifier": "mcss", "tree": "3x2x1", "target": "tiny"},
    {"verifier": "k-seq", "tree": "4x1x1", "target": "tiny"},
    {"verifier": "mtad:0.5", "beams": Beams(4)},
    {"verifier": "mtjd", "length": 3, "draft": None},
    {"draft": "ngram"},
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
def test_the_text_is_that_of_transformers(folder: Path, way: dict[str, Any]) -> None:
    """The same weights in float32 and the same random numbers give the same tokens, alone and in a list."""
    gguf_decoder, transformers_decoder = (
        decoder(folder, **way),
        SpeculativeDecoder.from_pretrained(**{"target": "tiny", "draft": "tiny-draft"} | way),
    )
    prompts = [PROMPT, "Write a SQL query that counts users", "2 + 2"]
    settings = {"max_new_tokens": 40, "top_k": 20, "chat": True, "seed": 3}
    for prompt in (PROMPT, prompts):
        outputs, expected = (
            each_decoder.generate(prompt, **settings) for each_decoder in (gguf_decoder, transformers_decoder)
        )
        if isinstance(prompt, str):
            outputs, expected = [outputs], [expected]
        assert [text.tokens for text in outputs] == [text.tokens for text in expected]
        assert [text.text for text in outputs] == [text.text for text in expected]
        assert [text.rounds for text in outputs] == [text.rounds for text in expected]


def greedy_loop(model: GgufModel, prompt: Sequence[int], budget: int, stop: frozenset[int]) -> list[int]:
    """Return the greedy text by llama.cpp's own decoding and sampling, with keys and values in float32."""
    llama = library()
    context = model.new_context(1024, 1)
    llama.llama_set_embeddings(context.pointer, False)
    sampler = llama.llama_sampler_init_greedy()
    tokens, written = list(prompt), list[int]()
    try:
        while True:
            array = (ctypes.c_int32 * len(tokens))(*tokens)
            assert llama.llama_decode(context.pointer, llama.llama_batch_get_one(array, len(tokens))) == 0
            tokens = [llama.llama_sampler_sample(sampler, context.pointer, -1)]
            written += tokens
            if len(written) == budget or written[-1] in stop:
                return written
    finally:
        llama.llama_sampler_free(sampler)


@pytest.mark.parametrize("target", ["tiny.gguf", "tiny-bf16.gguf"])
def test_greedy_text_is_that_of_llama_cpp(folder: Path, target: str) -> None:
    """Texts of 30 prompts are compared, without drafts for all weights, and with drafts if no product uses bfloat16."""
    prompts = load_prompts("builtin", split="test", limit=30)
    options: list[dict[str, Any]] = [{"draft": None}]
    if target == "tiny.gguf":
        draft = folder / "tiny-draft.gguf"
        options += [{"draft": draft, "length": 5}, {"draft": "ngram"}]
    decoders = [SpeculativeDecoder.from_pretrained(folder / target, **extra_options) for extra_options in options]
    model = decoders[0].target.model
    assert isinstance(model, GgufModel)
    ids = [decoders[0]._encode(prompt.prompt, True, None) for prompt in prompts]
    expected = [greedy_loop(model, prompt_tokens, 40, decoders[0].stop_tokens) for prompt_tokens in ids]
    for gguf_decoder in decoders:
        texts = [gguf_decoder.generate(prompt, max_new_tokens=40, temperature=0).tokens for prompt in ids]
        assert sum(a == b for a, b in zip(texts, expected, strict=True)) == 30


def test_two_decoders_and_several_threads(folder: Path) -> None:
    decoders = decoder(folder, length=3), decoder(folder, length=2, verifier="block")
    jobs = [(each_decoder, seed) for each_decoder in decoders for seed in range(3)]

    def run(job: tuple[SpeculativeDecoder, int]) -> list[int]:
        return list(job[0].generate(PROMPT, seed=job[1], max_new_tokens=30, chat=True).tokens)

    sequential = [run(job) for job in jobs]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(run, jobs)) == sequential


@pytest.mark.parametrize(("length", "options"), [("tiny-head", {}), ("tiny-lag-free", {"cost": 0.2})])
def test_controllers_of_the_transformers_pair_steer(folder: Path, length: str, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="but another target and draft is given"):
        decoder(folder, length=length, **options)
    with pytest.warns(UserWarning, match="trained for target tiny and draft tiny-draft, but another target and draft"):
        gguf_decoder = decoder(folder, length=length, pair_check="tokenizer", **options)
    transformers_decoder = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length=length, **options)
    settings = {"max_new_tokens": 40, "chat": True, "seed": 3}
    assert gguf_decoder.generate(PROMPT, **settings).rounds == transformers_decoder.generate(PROMPT, **settings).rounds
    if options:
        with pytest.warns(UserWarning, match="another target and draft"):
            adaptive = decoder(folder, length=length, cost="auto", pair_check="tokenizer")
        assert adaptive.generate(PROMPT, max_new_tokens=20, chat=True).tokens


def test_routers_choose_between_gguf_drafts(folder: Path) -> None:
    arms = [str(folder / "tiny-draft.gguf"), str(folder / "tiny-draft-math.gguf"), "ngram", "autoregressive"]
    greedy = {"temperature": 0, "max_new_tokens": 30, "chat": True}
    expected = decoder(folder, length=Fixed(2)).generate(PROMPT, **greedy).tokens
    for index in range(len(arms)):
        output = decoder(folder, draft=arms, router=SingleArm(index, len(arms)), length=3).generate(PROMPT, **greedy)
        assert (output.tokens, output.arm) == (expected, index)
    with pytest.raises(InputError, match=r"arm 'exit:2': llama is run by llama\.cpp, which has no early exits"):
        decoder(folder, draft=["exit:2", "autoregressive"], router=SingleArm(0, 2), length=3)


@pytest.mark.parametrize(
    "options",
    [{"tree": "2x2x1", "verifier": "mcss"}, {"tree": (2, 1), "verifier": "mcss"},
     {"tree": "auto", "length": "online-confidence", "cost": 0.2}],
)  # fmt: skip
def test_a_gguf_target_decodes_no_trees(folder: Path, options: dict[str, Any]) -> None:
    for draft in (folder / "tiny-draft.gguf", "tiny-draft"):
        with pytest.raises(InputError, match=r"^tree='(2x2x1|2x1|auto)':"):
            decoder(folder, draft=draft, **options)


def test_context_and_stop_tokens(folder: Path) -> None:
    gguf_decoder = decoder(folder, length=4)
    assert gguf_decoder.stop_tokens == frozenset([1])
    assert gguf_decoder.target.context == 512
    with pytest.raises(InputError, match="600 tokens, but the context holds 512"):
        gguf_decoder.generate([5] * 600)
    long = gguf_decoder.generate([5] * 500, max_new_tokens=100, temperature=0)
    assert len(long.tokens) <= 12


# Files: their tokenizers, weights, options, bad ones


ARCHITECTURE = "general.architecture"


def rewrite(source: Path, target: Path, change: Callable[[str, Any], Any]) -> Path:
    """Copy ``source`` to ``target``; ``change`` returns the new value of a key of the metadata; None removes it."""
    from gguf import GGUFReader, GGUFValueType, GGUFWriter

    reader = GGUFReader(source)
    writer = GGUFWriter(str(target), change(ARCHITECTURE, reader.fields[ARCHITECTURE].contents()))
    for key, entry in reader.fields.items():
        value = change(key, entry.contents())
        if not key.startswith("GGUF.") and key != ARCHITECTURE and value is not None:
            kind = entry.types[0]
            writer.add_key_value(key, value, kind, entry.types[-1] if kind == GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def test_the_tokenizer_is_transformers_own(folder: Path) -> None:
    gguf_tokenizer, transformers_tokenizer = load_tokenizer(folder / "tiny.gguf"), load_tokenizer("tiny")
    assert tokenizer_fingerprint(gguf_tokenizer) == tokenizer_fingerprint(transformers_tokenizer)
    assert gguf_tokenizer.chat_template == transformers_tokenizer.chat_template
    assert gguf_tokenizer(SAMPLE)["input_ids"] == transformers_tokenizer(SAMPLE)["input_ids"]
    model = load_any_model(folder / "tiny.gguf")
    assert isinstance(model, GgufModel)
    assert model.tokenize(SAMPLE) == transformers_tokenizer(SAMPLE)["input_ids"]


def test_a_file_without_it_has_one_made_of_llama_cpps(folder: Path, tmp_path: Path) -> None:
    path = rewrite(
        folder / "tiny.gguf", tmp_path / "plain.gguf", lambda key, value: None if key == TOKENIZER_KEY else value
    )
    gguf_tokenizer, transformers_tokenizer = load_tokenizer(path), load_tokenizer("tiny")
    assert gguf_tokenizer.get_vocab() == transformers_tokenizer.get_vocab()
    assert gguf_tokenizer(SAMPLE)["input_ids"] == transformers_tokenizer(SAMPLE)["input_ids"]
    chat = [{"role": "user", "content": "hello"}]
    assert gguf_tokenizer.apply_chat_template(chat, tokenize=False) == transformers_tokenizer.apply_chat_template(
        chat, tokenize=False
    )
    greedy = {"temperature": 0, "max_new_tokens": 20, "chat": True}
    expected = SpeculativeDecoder.from_pretrained("tiny").generate("hello", **greedy)
    for options in ({}, {"tokenizer": "tiny"}):
        loaded = SpeculativeDecoder.from_pretrained(path, folder / "tiny-draft.gguf", **options)
        assert loaded.generate("hello", **greedy).text == expected.text


def test_splitting_otherwise_than_llama_cpp_is_a_warning(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    other = rewrite(folder / "tiny.gguf", path, lambda key, value: value[:900] if key.endswith(".merges") else value)
    with pytest.warns(UserWarning, match="splits text otherwise than llama"):
        SpeculativeDecoder.from_pretrained(other)


def test_weights_and_fingerprints(folder: Path, tmp_path: Path) -> None:
    exact = load_any_model(folder / "tiny-draft.gguf")
    weights = output_embedding(load_model("tiny-draft"))
    assert torch.equal(output_embedding(exact), weights)
    prints = {model_fingerprint(exact)}
    for kind, tolerance in (("bf16", 0.0), ("q8_0", 0.02)):  # the shipped weights are bfloat16
        write_gguf("tiny-draft", tmp_path / f"{kind}.gguf", kind)
        loaded = load_any_model(tmp_path / f"{kind}.gguf")
        assert float((output_embedding(loaded) - weights).abs().max() / weights.abs().max()) <= tolerance
        prints.add(model_fingerprint(loaded))
    assert len(prints) == 3
    copied = tmp_path / "copy.gguf"
    copied.write_bytes((folder / "tiny-draft.gguf").read_bytes())
    assert model_fingerprint(load_any_model(copied)) in prints


BAD: list[tuple[Callable[[Path, Path], object], str]] = [
    (lambda source, path: path.write_bytes(source.read_bytes()[:9000]), "the GGUF file is truncated or damaged; fetch"),
    (
        lambda source, path: path.write_bytes(source.read_bytes()[: source.stat().st_size * 7 // 10]),
        "the GGUF file is truncated or damaged; fetch",
    ),
    (lambda source, path: path.write_bytes(b"not a model"), "is not a GGUF file, although its name ends with .gguf"),
    (lambda source, path: None, "no such GGUF file"),
    (
        lambda source, path: rewrite(source, path, lambda key, old: "toaster" if key == ARCHITECTURE else old),
        "llama.cpp cannot load it (",
    ),
    (lambda source, path: random_llama(path.parent)[0].rename(path), "is of another tokenizer: "),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_files_are_one_line(
    folder: Path, tmp_path: Path, change: Any, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.gguf"
    change(folder / "tiny-draft.gguf", path)
    capfd.readouterr()
    assert cli.main(["generate", "hello", "--target", str(folder / "tiny.gguf"), "--draft", str(path)]) == 2
    printed = capfd.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert message in printed.err


def test_options_that_a_gguf_file_has_not(folder: Path) -> None:
    path = folder / "tiny.gguf"
    for options, message in (
        ({"dtype": "float64"}, "dtype='float64':"),
        ({"device_map": "auto"}, "device_map='auto':"),
        ({"revision": "main"}, "revision='main':"),
    ):
        with pytest.raises(InputError, match=message):
            SpeculativeDecoder.from_pretrained(path, **options)
    with pytest.raises(InputError, match="a GGUF file, where a model in transformers' format is needed"):
        load_model(path)


def test_controllers_are_trained_on_gguf_pairs(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Data, training, export and decoding run by the command line, without messages of llama.cpp."""
    pair = ["--target", str(folder / "tiny.gguf"), "--draft", str(folder / "tiny-draft.gguf")]
    data, run, exported = (str(tmp_path / name) for name in ("data", "run", "head"))
    assert cli.main(["data", "acceptance", *pair, "--limit", "12", "--max-new-tokens", "16", "--output", data]) == 0
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_text())
    same = str(tmp_path / "same")
    assert cli.main(["data", "acceptance", "--limit", "12", "--max-new-tokens", "16", "--output", same]) == 0
    expected = json.loads((tmp_path / "same" / "manifest.json").read_text())
    assert manifest["mean_acceptance"] == pytest.approx(expected["mean_acceptance"], abs=1e-3)
    training = ["--data", data, "--output", run, "--validation-fraction", "0.4", "--epochs", "1"]
    assert cli.main(["train", "acceptance", *training]) == 0
    assert cli.main(["export", run, "--output", exported]) == 0
    capfd.readouterr()
    assert cli.main(["generate", "hello", *pair, "--length", exported, "--cost", "0.2", "--max-new-tokens", "8"]) == 0
    assert capfd.readouterr().err == ""
    with pytest.raises(InputError, match="another target and draft is given"):
        SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length=exported, cost=0.2)


def test_llama_cpps_own_loops_have_the_greedy_text(folder: Path, tmp_path: Path) -> None:
    """The loops of the study are compared: without drafts, and with its numbers of drafted tokens."""
    gguf_decoder = decoder(folder, length=2)
    target, draft = gguf_decoder.target.model, gguf_decoder.drafts[0].model
    assert isinstance(target, GgufModel)
    assert isinstance(draft, GgufModel)
    expected = gguf_decoder.generate(PROMPT, max_new_tokens=24, temperature=0)
    for longest in (0, 2):
        loop = LlamaLoop(target, draft, longest, SamplingParams(0.0), 24, gguf_decoder.stop_tokens)
        for _ in range(2):  # the contexts are used again
            assert loop.generate(expected.prompt_tokens, 0) == expected.tokens

    words = ["llama-loops", "--target", str(folder / "tiny.gguf"), "--draft", str(folder / "tiny-draft.gguf")]
    words += ["--lengths", "[0,2]", "--max-new-tokens", "8", "--limit", "2", "--output", str(tmp_path / "loops.json")]
    assert experiments([*words, "--repeats", "1"]) == 0
    rates = json.loads((tmp_path / "loops.json").read_text())
    assert {"llama.cpp 0", "specpilot 0", "llama.cpp 2", "specpilot 2"} <= {*json.dumps(rates).split('"')}
