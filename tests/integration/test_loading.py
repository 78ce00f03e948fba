"""Models and tokenizers by name: every kind of name, location and format, and one line if loading fails."""

import json
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import load_file, save_file
from safetensors.torch import save as to_bytes
from specpilot.common.errors import InputError
from specpilot.data_gen.acceptance import make_acceptance_data
from specpilot.data_gen.feature_shards import FeatureDataset
from specpilot.data_gen.kinds import AcceptanceRow, read_dataset
from specpilot.data_gen.options import AcceptanceDataOptions
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.models.base import input_device, is_dispatched
from specpilot.models.loading import names
from specpilot.models.loading.devices import check_dtype
from specpilot.models.loading.names import load_model, load_tokenizer
from specpilot.train.features import make_features
from specpilot.train.options import FeatureDataOptions
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from ..helpers.architectures import target_of
from ..helpers.bad_files import Change, copy
from ..helpers.drafts import shared_pair
from ..helpers.eagle3 import write_draft
from ..helpers.refusals import refused
from ..helpers.tiny import make, save_pair

INDEX = "model.safetensors.index.json"
IDS = torch.tensor([[5, 9, 2, 44]])
SPREAD = {
    "model.embed_tokens": "cpu",
    "model.rotary_emb": "cpu",
    "model.layers.0": "cpu",
    "model.layers.1": "disk",
    "model.norm": "disk",
    "lm_head": "cpu",
}


@torch.inference_mode()
def logits(model: Any) -> Tensor:
    inputs = {"decoder_input_ids": IDS} if model.config.is_encoder_decoder else {}
    result: Tensor = model(IDS, **inputs).logits
    return result


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a tiny model with its tokenizer."""
    return Path(save_pair(tmp_path)[0])


def edit_config(folder: Path, name: str = "config.json", **settings: Any) -> None:
    file = folder / name
    content = json.loads(file.read_text()) | settings
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def test_text_and_paths(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = logits(make(vocab=257))
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("HOME", str(folder.parent))
    for name in (folder, str(folder), Path("target"), "target", "~/target", Path("~/target")):
        assert torch.equal(logits(load_model(name, device="cpu")), expected)
        assert load_tokenizer(name)("hi")["input_ids"] == load_tokenizer(folder)("hi")["input_ids"]


@pytest.mark.parametrize(
    ("package", "file", "load", "message"),
    [
        *(("peft", "adapter_config.json", load, r"an adapter, which needs peft: pip install 'specpilot\[peft\]'; or")
          for load in (load_model, load_tokenizer)),
        *(("sentencepiece", file, load_tokenizer, f"{file}, needs sentencepiece: pip install 'specpilot.sentence")
          for file in ("spiece.model", "tokenizer.model")),
    ],
)  # fmt: skip
def test_the_extra_is_named(folder: Path, package: str, file: str, load: Any, message: str) -> None:
    """The error names the extra, for a folder with only the file and for a folder with a model."""
    if find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    full_model = folder.parent / "alone"
    make().save_pretrained(full_model)
    for place in (full_model, folder) if package == "peft" else (full_model,):
        (place / file).write_text(json.dumps({"base_model_name_or_path": str(folder)}))
        with refused(message):
            load(place)


def test_adapters_are_loaded_with_their_base_model(folder: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    expected = peft.get_peft_model(load_model(folder, device="cpu"), config).eval()
    expected.save_pretrained(tmp_path / "adapter")
    whole = shutil.copytree(folder, tmp_path / "whole")
    shutil.copytree(tmp_path / "adapter", whole, dirs_exist_ok=True)
    for place in (tmp_path / "adapter", whole):
        assert torch.equal(logits(load_model(place, device="cpu")), logits(expected))
        assert load_tokenizer(place)("hi")["input_ids"] == load_tokenizer(folder)("hi")["input_ids"]
    for base, message in (
        (None, r"base_model_name_or_path=None:"),
        ("./nowhere", r"whose base_model_name_or_path cannot be loaded: \./nowhere: no such model folder"),
        (str(tmp_path / "adapter"), "an adapter of '.*', which is an adapter itself"),
        ("tiny-t5", r"does not fit its base model \(Target modules"),
    ):
        edit_config(tmp_path / "adapter", name="adapter_config.json", base_model_name_or_path=base)
        with refused(message):
            load_model(tmp_path / "adapter")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", r"name='':"),
        ("no name", r"no name: no such folder, and not found on the hub \(no valid id\); give .* tiny, .*tiny-t5"),
        (Path("tiny"), r"tiny: no such model folder"),
        ("./nothing", r"\./nothing: no such model folder"),
        (__file__, r"test_loading\.py: a file; give the folder of a model"),
        ("tiny-head", r"tiny-head: cannot be loaded as a language model \(Unrecognized model"),
    ],
)
def test_names_of_nothing(name: str | Path, message: str) -> None:
    with refused(message):
        load_model(name)
    if name != "tiny-head":
        with refused(message.partition(";")[0]):
            load_tokenizer(name)


@pytest.mark.parametrize("verbosity", ["warning", "info"])
def test_loading_bars(
    folder: Path, verbosity: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bar of weights appears only if transformers logs at level INFO, and transformers' own loading keeps it."""
    monkeypatch.setattr(transformers_logging, "_tqdm_active", True)  # earlier commands in this process hide bars
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(transformers_logging.log_levels[verbosity])
    try:
        with ThreadPoolExecutor(2) as threads:
            for _ in threads.map(load_model, [folder] * 2):
                pass
        assert ("Loading weights" in capsys.readouterr().err) == (verbosity == "info")
        AutoModelForCausalLM.from_pretrained(folder)
        assert "Loading weights" in capsys.readouterr().err
    finally:
        transformers_logging.set_verbosity(level)


def test_threads_that_load_at_once_leave_weights_tied() -> None:
    """transformers replaces the function that ties weights while it loads. A replacement must not stay."""
    function = PreTrainedModel.tie_weights
    with ThreadPoolExecutor(4) as threads:
        models = [*threads.map(load_model, ["tiny", "tiny-draft"] * 4), load_model("tiny")]
    assert PreTrainedModel.tie_weights is function
    assert all(model.get_output_embeddings().weight is model.get_input_embeddings().weight for model in models)


def test_dtypes(folder: Path) -> None:
    edit_config(folder, dtype="bfloat16")
    weights = {name: weight.bfloat16() for name, weight in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for dtype, expected in (("auto", torch.bfloat16), ("float32", torch.float32), ("float64", torch.float64)):
        assert load_model(folder, device="cpu", dtype=dtype).dtype == expected


def test_a_dtype_that_a_device_does_not_have() -> None:
    with pytest.raises(InputError, match="dtype='float64':"):
        check_dtype(torch.float64, torch.device("mps"))
    check_dtype("auto", torch.device("mps"))


@pytest.mark.parametrize(("device_map", "expected"), [("cuda", {"": "cuda:1"}), ("cpu", {"": "cpu"}), ("auto", "auto")])
def test_a_launcher_does_not_choose_the_device(
    device_map: str, expected: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers takes LOCAL_RANK for the number of the device "cuda"."""
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(names, "check_device_map", lambda *_: None)  # there may be no such device here
    devices = []

    def from_pretrained(path: str, **options: Any) -> NoReturn:
        devices.append(options["device_map"])
        raise OSError

    monkeypatch.setattr(names.AutoModelForCausalLM, "from_pretrained", from_pretrained)
    with pytest.raises(InputError):
        load_model(folder, device_map=device_map)
    assert devices == [expected]


@pytest.mark.parametrize("device_map", ["auto", "cpu", {"": "cpu"}])
def test_maps_of_one_device(tmp_path: Path, device_map: Any) -> None:
    if device_map == "auto" and torch.cuda.is_available():
        pytest.skip("spreads over the GPUs")
    make().save_pretrained(tmp_path)
    model = load_model(tmp_path, device_map=device_map)
    assert torch.equal(logits(model), logits(make()))
    assert not is_dispatched(model)  # a plain model, on that device
    assert input_device(model) == model.device


@pytest.fixture
def spread(folder: Path) -> dict[str, Any]:
    """Return keywords that spread the layers of a target over devices and the disk."""
    return {"device_map": SPREAD, "offload_folder": str(folder.parent / "offloaded")}


@pytest.mark.parametrize("device_map", [SPREAD, {"model": "disk", "lm_head": "cpu"}])
def test_texts_of_a_spread_target(folder: Path, spread: dict[str, Any], device_map: Any) -> None:
    """Texts by chains and trees, alone and in lists, equal those of the target on one device."""
    names, prompts = (folder, folder.with_name("draft")), ["hello you", "a", "some more"]
    for way in ({"length": 3}, {"tree": (2, 2), "verifier": "spec-infer"}):
        whole = SpeculativeDecoder.from_pretrained(*names, device="cpu", **way)
        other = SpeculativeDecoder.from_pretrained(*names, **way, **spread | {"device_map": device_map})
        layers: Any = other.target.model.get_submodule("model.layers")
        assert layers[1].mlp.up_proj.weight.device.type == "meta"  # offloaded, until its forward
        assert is_dispatched(other.target.model)
        expected = [row.tokens for row in whole.generate(prompts, max_new_tokens=12, seed=1)]
        assert [row.tokens for row in other.generate(prompts, max_new_tokens=12, seed=1)] == expected
        assert other.generate(prompts[0], max_new_tokens=12, seed=1).tokens == expected[0]


def test_data_of_a_spread_target(folder: Path, spread: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("".join(f"prompt {i} {'word ' * (i % 5)}\n" for i in range(12)))
    data = AcceptanceDataOptions(
        target=str(folder), draft=str(folder.with_name("draft")), prompts=str(tmp_path / "prompts.txt"), chat=False,
        max_new_tokens=12, batch_size=5, shard_size=4,
    )  # fmt: skip
    for name, placed in (("whole", {}), ("spread", spread)):
        make_acceptance_data(replace(data, **placed), tmp_path / name)
        features = {"predictor": "lag-free", "traced": 2, "validation_fraction": 0.4, **placed}
        make_features(FeatureDataOptions(data=str(tmp_path / name), **features), tmp_path / f"{name}-features")
    rows = (read_dataset(tmp_path / name, AcceptanceRow) for name in ("whole", "spread"))
    for row, other in zip(*rows, strict=True):
        assert replace(row, p=[]) == replace(other, p=[])
        assert other.p == pytest.approx(row.p, abs=1e-5)
    manifests = [FeatureDataset(tmp_path / f"{name}-features").manifest for name in ("whole", "spread")]
    files = [[shard.file for shard in manifest.shards] for manifest in manifests]
    assert files[0] == files[1]


def test_experts_that_are_offloaded(tmp_path: Path) -> None:
    """Weights of experts are stored in another form than they are used in, so offloading writes them again."""
    whole = target_of("mixtral")
    whole.save_pretrained(tmp_path / "model")
    model = load_model(tmp_path / "model", device_map=SPREAD, offload_folder=tmp_path / "offloaded")
    assert torch.equal(logits(model), logits(whole))
    assert any((tmp_path / "offloaded").iterdir())
    with pytest.raises(InputError, match=r"cannot be loaded as a language model .*offload_folder"):
        load_model(tmp_path / "model", device_map=SPREAD)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "dtype='int8':"),
        *(({"device": name}, f"device='{name}':") for name in ("cuda:99", "meta", "none")),
        ({"device_map": "auto", "device": "cpu"}, "device='cpu' and device_map='auto': both place the model; give one"),
        ({"offload_folder": "x"}, "offload_folder='x':"),
        ({"device_map": "nonsense"}, "device_map='nonsense':"),
        ({"device_map": "disk"}, "device_map='disk':"),
        ({"device_map": {}}, "device_map={}:"),
        ({"device_map": {"": "cuda:99"}}, "device_map={'': 'cuda:99'}: 'cuda:99' is not available on this machine"),
        ({"device_map": {"": "auto"}}, "device_map={'': 'auto'}: 'auto' is not available on this machine"),
    ],
)
def test_devices_maps_and_dtypes_that_there_are_not(folder: Path, options: dict[str, Any], message: str) -> None:
    with refused(message):
        load_model(folder, **options)


def test_without_accelerate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)  # as Python marks a package that is not to be found
    with pytest.raises(InputError, match="device_map='auto': needs the package accelerate; pip install accelerate"):
        load_model(folder, device_map="auto")
    edit_config(folder, quantization_config={"quant_method": "fp8"})
    with pytest.raises(InputError, match="weights quantised with fp8: needs the package accelerate"):
        load_model(folder)


@pytest.mark.parametrize("options", [{"device": "cpu"}, {"device_map": SPREAD}, {"device": "cpu", "dtype": "auto"}])
def test_a_quantised_checkpoint(tmp_path: Path, options: dict[str, Any]) -> None:
    """FP8 weights have a scale for each block of 128 x 128. On a CPU, transformers dequantises them."""
    whole = make(hidden=128)
    whole.save_pretrained(tmp_path)
    weights = {}
    for name, weight in load_file(tmp_path / "model.safetensors").items():
        if "_proj" not in name:
            weights[name] = weight
            continue
        scale = weight.abs().max() / torch.finfo(torch.float8_e4m3fn).max
        blocks = [-(-size // 128) for size in weight.shape]
        weights[name] = (weight / scale).to(torch.float8_e4m3fn)
        weights[f"{name}_scale_inv"] = scale.expand(*blocks).contiguous()
        whole.get_parameter(name).copy_(weights[name].float() * scale)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    edit_config(tmp_path, quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})
    if "device_map" in options:
        options = {**options, "offload_folder": tmp_path / "offloaded"}
    torch.testing.assert_close(logits(load_model(tmp_path, **options)), logits(whole))


def config(**settings: Any) -> dict[str, Change]:
    return {"config.json": settings}


def described(change: Callable[[dict[str, Any]], object]) -> dict[str, Change]:
    """Return a function that changes draft.json."""

    def damage(content: bytes) -> bytes:
        values = json.loads(content)
        change(values)
        return json.dumps(values).encode()

    return {"draft.json": damage}


def sharded(index: bytes) -> dict[str, Change]:
    return {"model.safetensors": None, INDEX: index}


def weighted(name: str, change: Callable[[Tensor], Tensor] | None = None) -> dict[str, Change]:
    """Return a function that changes or removes one weight."""

    def damage(content: bytes) -> bytes:
        weights = from_bytes(content)
        weight = weights.pop(name, torch.zeros(2))
        return to_bytes(weights | ({name: change(weight)} if change else {}))

    return {"model.safetensors": damage}


def cut(content: bytes) -> bytes:
    return content[:-50]


def eagle(folder: Path, **more: Any) -> tuple[Path, dict[str, Any]]:
    settings: dict[str, Any] = {"vocab": 96, "kept": [*range(0, 96, 3)], "target": 32, "layers": [1, 2]}
    return write_draft(folder / "draft", **settings, **more), {}


def sharing(folder: Path) -> tuple[Path, dict[str, Any]]:
    shared_pair(folder)
    return folder / "draft", {"target": str(folder / "target")}


KINDS: dict[str, Callable[[Path], tuple[Path, dict[str, Any]]]] = {  # a folder, and what it is loaded with
    "model": lambda folder: (Path(save_pair(folder)[0]), {}),
    "draft": sharing,
    "EAGLE-3": eagle,
    "EAGLE-3, original": partial(eagle, original=True),
    "EAGLE-3, shards": partial(eagle, shards=2),
}
DAMAGE: list[tuple[str, dict[str, Change], str]] = [  # what else may be damaged than tests.helpers.bad_files has
    ("model", config(model_type="vit"), "Unrecognized configuration class"),
    (
        "model",
        config(vocab_size=300),
        r"1 more do not have the shape of config\.json \(\(257, 32\) instead of \(300, 32\)\)",
    ),
    ("model", config(num_hidden_layers=3), r"the weights model\.layers\.2\..* and 8 more are missing"),
    ("model", config(model_type="zzz", auto_map={"AutoConfig": "code.Config"}), "trust_remote_code=True"),
    ("model", sharded(b"{oops"), "a file is damaged, not JSON"),
    ("model", sharded(b"{}"), "KeyError: 'weight_map'"),
    ("model", sharded(b'{"metadata": {}, "weight_map": {"a": "b.safetensors"}}'), "No such file.*b.safet"),
    ("draft", {"draft.json": None}, "a draft without draft.json"),
    ("draft", {"draft.safetensors": None}, "a draft without draft.safetensors"),
    ("draft", {"draft.safetensors": cut}, "truncated or damaged"),
    ("draft", {"draft.json": cut}, "not JSON"),
    ("draft", described(lambda c: c["kept_tokens"].reverse()), "kept_tokens: must be different token ids below 96"),
    ("draft", described(lambda c: c["kept_tokens"].append(96)), "kept_tokens: must be"),
    ("draft", {"draft.json": {"kept_tokens": []}}, "kept_tokens: must be"),
    ("draft", described(lambda c: c["target"].update(weights=["input"])), "lm_head.weight is missing"),
    ("draft", described(lambda c: c["target"].update(weights=["both"])), "target.weights.*'both'.*input.*output"),
    ("draft", {"draft.json": {"schema_version": 2}}, "schema_version=2:"),
    ("EAGLE-3", config(speculators_model_type="dflash"), "of kind 'dflash'; 'eagle3' can be read"),
    ("EAGLE-3", config(norm_before_residual=None), "norm_before_residual"),
    ("EAGLE-3", config(draft_vocab_size="many"), "draft_vocab_size"),
    ("EAGLE-3", config(draft_vocab_size=7), r"lm_head\.weight has 32 rows, draft_vocab_size is 7"),
    ("EAGLE-3", config(fc_norm=True), "state_input.fc_norm.0.weight is missing"),
    ("EAGLE-3", config(target_hidden_size=64), r"weight has shape \(32, 64\) instead of \(32, 128\)"),
    ("EAGLE-3", config(transformer_layer_config={"model_type": "llama"}), "vocab_size=None:"),
    ("EAGLE-3, original", config(model_type="gpt2"), "layers of 'gpt2'; supported are llama and qwen3"),
    ("EAGLE-3, original", config(eagle_config={"use_aux_hidden_state": False}), "use_aux_hidden_state=false"),
    ("EAGLE-3", weighted("d2t"), "d2t is missing, which maps 32 of 96 tokens"),
    ("EAGLE-3", weighted("fc.weight"), "state_input.fc.weight is missing"),
    ("EAGLE-3", weighted("norm.weight"), "lm_head.norm.weight is missing"),
    ("EAGLE-3", weighted("embed_tokens.weight"), "a draft with the embedding of its target; load it as the draft of"),
    ("EAGLE-3", weighted("more.weight", torch.zeros_like), r"more\.weight is not one of this model's"),
    ("EAGLE-3", weighted("d2t", lambda old: torch.zeros_like(old) - 1), "d2t must map 32 outputs"),
    ("EAGLE-3", {"model.safetensors": cut}, "truncated or damaged"),
    ("EAGLE-3", {"model.safetensors": None}, r"an EAGLE-3 draft without model\.safetensors"),
    ("EAGLE-3", weighted("lm_head.weight"), "a draft with the output projection of its target; load it as the draft"),
    (
        "EAGLE-3, shards",
        {"model-00001.safetensors": None},
        r"model-00001\.safetensors is missing; fetch the draft again",
    ),
    ("EAGLE-3, shards", {"model-00001.safetensors": cut}, "truncated or damaged"),
    ("EAGLE-3, shards", {INDEX: {"weight_map": 3}}, r"index\.json: weight_map=3: an object of keys and values"),
    (
        "EAGLE-3, shards",
        {INDEX: {"weight_map": {"fc.weight": "../x.safetensors"}}},
        r"'\.\./x\.safetensors' is no file",
    ),
    ("EAGLE-3, shards", {INDEX: cut}, r"index\.json: not JSON"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "changes", "message"), DAMAGE, ids=[f"{row[0]}: {row[2]}" for row in DAMAGE])
def test_damaged_folders(kind: str, changes: dict[str, Change], message: str, tmp_path: Path) -> None:
    whole, options = KINDS[kind](tmp_path)
    load_model(whole, device="cpu", **options)
    copy(whole, tmp_path / "damaged", changes)
    with refused(f"{tmp_path / 'damaged'}.*{message}"):
        load_model(tmp_path / "damaged", device="cpu", **options)
