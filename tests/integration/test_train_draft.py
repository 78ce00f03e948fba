"""Drafts made of a target's layers: initial weights, the loss, data, exact resume, export."""

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from specpilot.cli import main as cli
from specpilot.common.errors import InputError
from specpilot.controllers.checkpoints.fingerprint import model_fingerprint
from specpilot.data_gen.acceptance import make_answers
from specpilot.data_gen.documents import Document, most_frequent, read_documents
from specpilot.data_gen.options import AnswersDataOptions
from specpilot.models.causal_lm import forward_with_hidden, layer_modules
from specpilot.models.eagle import find_state_input
from specpilot.models.loading.draft_folder import SharedTarget, save_draft
from specpilot.models.loading.eagle3_folder import save_eagle3
from specpilot.models.loading.names import load_model, load_tokenizer
from specpilot.models.trimmed_head import TrimmedHead, keep_trimmed
from specpilot.train.draft import train_draft
from specpilot.train.draft_model import choose_layers, choose_state_layers, load_initial, new_draft, new_eagle3
from specpilot.train.draft_module import DraftDataModule, DraftModule, draft_logits
from specpilot.train.export import export
from specpilot.train.modules import cosine
from specpilot.train.options import DraftTrainingOptions
from specpilot.train.target_states import StateFolder, Teacher, Windows, pack
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

from ..helpers.architectures import HIDDEN, MAKERS, t5, target_of
from ..helpers.drafts import assert_seeded_texts_are_the_targets, state_draft
from ..helpers.greedy import each
from ..helpers.printed import printed_arguments
from ..helpers.refusals import refused
from ..helpers.tiny import make, save_pair
from ..helpers.training import differ, last_weights, metrics_rows

TEXT = [5, 9, 2, 33, 41, 7, 60, 12, 3, 80, 5, 9, 2, 33, 41, 7, 60, 12, 3, 80]
REFUSED = {  # architectures of which there is no shorter model, with the reason
    "gemma3n": "num_kv_shared_layers", "gemma4": "num_kv_shared_layers", "gpt-neo": "attention_types",
}  # fmt: skip
DENSE_FIRST = ("llama4", "deepseek-v2", "deepseek-v3", "glm4-moe")  # a first layer is unlike a last one


# Initial weights


@each(MAKERS)
def test_all_layers_are_the_target_and_fewer_are_a_model(name: str) -> None:
    target = target_of(name)
    if name in REFUSED:
        with refused(f"because of its {REFUSED[name]}"):
            new_draft(target, [1], None)
        return
    tokens, kept = torch.tensor([TEXT]), [1, 5, 40, 90]
    whole = new_draft(target, range(target.config.num_hidden_layers), kept)
    expected = target(input_ids=tokens).logits[..., kept]
    torch.testing.assert_close(whole(input_ids=tokens).logits, expected, rtol=1e-4, atol=1e-4)
    layers = [target.config.num_hidden_layers - 1]
    if name in DENSE_FIRST:
        with pytest.raises(InputError, match="its layers differ in form"):
            new_draft(target, layers, kept)
        return
    last = new_draft(target, layers, kept)(input_ids=tokens).logits
    assert last.shape == expected.shape
    assert bool(last.isfinite().all())
    assert not torch.allclose(last, expected, atol=1e-2)


def test_layers_are_taken_from_where_they_are_asked() -> None:
    target = make(layers=4)
    draft = new_draft(target, [3, 1], None)
    for layer, target_layer in ((0, 3), (1, 1)):
        name = "model.layers.{}.mlp.down_proj.weight"
        assert torch.equal(draft.get_parameter(name.format(layer)), target.get_parameter(name.format(target_layer)))
    assert draft.config.num_hidden_layers == 2
    types = new_draft(target_of("gemma3"), [1], None).config.layer_types
    assert types == target_of("gemma3").config.layer_types[1:]


def test_layers_of_a_number_are_the_first_ones_and_the_last() -> None:
    assert [choose_layers(n, 30) for n in (1, 2, 3)] == [[29], [0, 29], [0, 1, 29]]
    assert choose_layers((4, 0), 5) == [4, 0]
    for layers in (0, 31, (30,)):
        with refused("layers="):
            choose_layers(layers, 30)
    with refused("t5: a draft can only be made of a decoder-only language model"):
        new_draft(t5(2, 96, 0), [0], None)


# Data


def test_windows_count_the_tokens_that_a_draft_would_propose() -> None:
    windows = pack([Document("a", [1, 2, 3, 4], 2), Document("b", [5, 6, 7], 0)], 4)
    assert windows.tokens.tolist() == [[1, 2, 3, 4], [5, 6, 7, 0]]
    assert windows.learned.tolist() == [[False, True, True, False], [True, True, False, False]]


def test_most_frequent_tokens() -> None:
    documents = [Document("a", [9, 9, 9, 4, 4, 6, 7, 7], 3)]  # the first three are a prompt
    assert most_frequent(documents, 2, range(10)) == [4, 7]
    assert most_frequent(documents, 4, range(10)) == [0, 4, 6, 7]
    assert most_frequent(documents, 2, range(10), always={9, 12}) == [4, 9]
    assert most_frequent(documents, 2, [1, 2, 7]) == [1, 7]
    with pytest.raises(InputError, match="count=11:"):
        most_frequent(documents, 11, range(10))


# Training


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a target, its answers, and answers of another target."""
    folder = tmp_path_factory.mktemp("draft")
    save_pair(folder)
    save_pair(folder / "other", target_seed=7)
    (folder / "p.txt").write_text("".join(f"prompt {i} {'word ' * (i % 3)}\n" for i in range(24)))
    save_pair(folder / "deep", layers=4)
    for name, target in (("answers", "target"), ("others", "other/target"), ("deep-answers", "deep/target")):
        options = AnswersDataOptions(
            target=str(folder / target), prompts=str(folder / "p.txt"), chat=False, max_new_tokens=24, shard_size=7,
            top_k=None, device="cpu",
        )  # fmt: skip
        make_answers(options, folder / name)
    return folder


@pytest.fixture(scope="module")
def settings(work: Path) -> DraftTrainingOptions:
    return DraftTrainingOptions(
        target=str(work / "target"), data=str(work / "answers"), layers=1, vocabulary=200, window=32, epochs=3,
        batch_size=4, lr=3e-3, validation_fraction=0.3, checkpoint_every=2, log_every=1, threads=1, device="cpu",
    )  # fmt: skip


@pytest.fixture(scope="module")
def eagle_settings(work: Path, settings: DraftTrainingOptions) -> DraftTrainingOptions:
    """Return the settings of an EAGLE-3 draft for a target with four layers."""
    return replace(
        settings, target=str(work / "deep" / "target"), data=str(work / "deep-answers"), layers=None, features="target"
    )


@pytest.fixture(scope="module")
def finished(work: Path, settings: DraftTrainingOptions) -> Path:
    """The run folder of an uninterrupted training."""
    train_draft(settings, output=work / "finished")
    return work / "finished"


CHANGED: dict[str, Any] = {  # unlike the settings of the fixtures
    "window": 16, "vocabulary": 100, "seed": 1, "limit": 5, "batch_size": 3, "lr": 1e-3, "dtype": "bfloat16",
}  # fmt: skip
CHANGED_LAYERS: dict[str, Any] = {"layers": (0,), "own_output": True}
CHANGED_EAGLE: dict[str, Any] = CHANGED | {"positions": 1, "features": None}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CHANGED_LAYERS, *CHANGED_EAGLE])
def test_each_setting_changes_the_weights(
    name: str, settings: DraftTrainingOptions, eagle_settings: DraftTrainingOptions, tmp_path: Path
) -> None:
    changes = CHANGED_LAYERS if name in CHANGED_LAYERS else CHANGED_EAGLE
    base_settings = replace(settings if name in CHANGED_LAYERS else eagle_settings, epochs=1)
    positions = {"positions": 3} if name == "features" else {}
    changed = replace(base_settings, **{name: changes[name]} | positions)
    runs = []
    for index, run_settings in enumerate((base_settings, changed)):
        train_draft(run_settings, output=tmp_path / f"run-{index}")
        runs.append(last_weights(tmp_path / f"run-{index}"))
    assert differ(*runs)


@pytest.mark.slow
def test_two_devices_do_the_work_of_one(finished: Path, settings: DraftTrainingOptions, tmp_path: Path) -> None:
    train_draft(replace(settings, devices=2), output=tmp_path / "run")
    rows = [metrics_rows(run) for run in (tmp_path / "run", finished)]
    assert len(rows[0]) == len(rows[1])
    for row, expected in zip(*rows, strict=True):
        assert {name: value for name, value in row.items() if not value} == {n: v for n, v in expected.items() if not v}
        for name in ("loss", "val_acceptance", "val_coverage"):
            assert float(row[name] or 0) == pytest.approx(float(expected[name] or 0), abs=1e-3), name


def data_of(settings: DraftTrainingOptions) -> DraftDataModule:
    return DraftDataModule(read_documents(settings.folders, load_tokenizer(settings.target)), settings)


def distributions(settings: DraftTrainingOptions, *models: nn.Module) -> list[torch.Tensor]:
    """Return the distributions of target and draft at the learned tokens of the validation texts."""
    validation = data_of(settings).validation
    return [model(input_ids=validation.tokens.long()).logits[validation.learned].softmax(-1) for model in models]


@pytest.mark.parametrize("own_output", [False, True])
@pytest.mark.parametrize("vocabulary", [200, None])
def test_the_exported_draft_is_the_one_that_was_validated(
    vocabulary: int | None, own_output: bool, settings: DraftTrainingOptions, tmp_path: Path
) -> None:
    """The acceptance of the exported draft, computed from distributions, equals that of the run."""
    settings = replace(settings, own_output=own_output, vocabulary=vocabulary, epochs=2)
    result = train_draft(settings, output=tmp_path / "run")
    export(tmp_path / "run", tmp_path / "draft")
    with refused("threshold=0.5"):
        export(tmp_path / "run", tmp_path / "other", threshold=0.5)
    best = torch.load(tmp_path / "run" / "checkpoints" / "best.ckpt", weights_only=True)
    assert "model.embed_tokens.weight" not in best["head"]
    assert ("lm_head.weight" in best["head"]) == own_output
    written = [file.read_text() for file in (tmp_path / "draft").glob("*.json")]
    assert not any(settings.target in text or str(tmp_path) in text for text in written)
    target = load_model(settings.target, device="cpu")
    draft = load_model(tmp_path / "draft", device="cpu", target=None if vocabulary is None else target)
    head: Any = draft.get_output_embeddings()
    assert isinstance(head, TrimmedHead) == (vocabulary is not None)
    tokens = slice(None) if vocabulary is None else head.tokens
    target_head: Any = target.get_output_embeddings()
    assert torch.equal(head.weight, target_head.weight[tokens]) != own_output
    p, q = distributions(settings, target, draft)
    accept = torch.minimum(p, q).sum(-1).mean()
    rounding = 0.01 if vocabulary else 1e-5  # a draft with some of the tokens is stored in bfloat16
    assert float(accept) == pytest.approx(result.metrics["acceptance"], abs=rounding)
    assert float(p[..., tokens].sum(-1).mean()) == pytest.approx(result.metrics["coverage"], abs=1e-4)
    agree = float((p.argmax(-1) == q.argmax(-1)).float().mean())
    assert agree == pytest.approx(result.metrics["greedy_agreement"], abs=0.02)


# Existing drafts


def continued(settings: DraftTrainingOptions, draft: Path) -> DraftTrainingOptions:
    """The settings of a training that begins with ``draft``."""
    return replace(settings, initial=str(draft), layers=None, vocabulary=8192, epochs=2)


@pytest.fixture(scope="module")
def trained(finished: Path) -> Path:
    """Return the exported draft of :func:`finished`."""
    export(finished, finished.parent / "trained")
    return finished.parent / "trained"


def acceptance(draft: Path, settings: DraftTrainingOptions) -> float:
    """Return the acceptance of a draft on the validation texts, computed from distributions."""
    target = load_model(settings.target, device="cpu")
    p, q = distributions(settings, target, load_model(draft, device="cpu", target=target))
    return float(torch.minimum(p, q).sum(-1).mean())


@pytest.fixture(scope="module")
def trained_whole(work: Path, settings: DraftTrainingOptions) -> Path:
    """Return the folder of a trained draft of all tokens, which has the format of transformers."""
    train_draft(replace(settings, vocabulary=None), output=work / "whole-run")
    return export(work / "whole-run", work / "whole")


@pytest.fixture(scope="module")
def earlier_whole(work: Path, settings: DraftTrainingOptions, trained_whole: Path) -> Path:
    """Return the draft of :func:`trained_whole` in specpilot's own format, without the target's weights."""
    target = load_model(settings.target, device="cpu")
    shared = SharedTarget("its-target", model_fingerprint(target), ["input", "output"])
    draft, tokenizer = load_model(trained_whole, device="cpu"), load_tokenizer(settings.target)
    return save_draft(draft, work / "earlier-whole", tokenizer, target=shared, dtype=torch.float32)


@pytest.mark.parametrize("begun", ["draft", "trained", "trained_whole", "earlier_whole"])
def test_training_continues_a_draft(
    begun: str, work: Path, settings: DraftTrainingOptions, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """All weights of another model are trained. Weights that a draft shares with the target stay the same."""
    is_other_model = begun == "draft"
    draft: Path = work / "draft" if is_other_model else request.getfixturevalue(begun)
    settings = continued(settings, draft)
    result = train_draft(settings, output=tmp_path / "run")
    export(tmp_path / "run", tmp_path / "draft")
    before, after = acceptance(draft, settings), acceptance(tmp_path / "draft", settings)
    assert after == pytest.approx(result.metrics["acceptance"], abs=0.01)
    assert result.metrics["acceptance"] > before + (0.01 if is_other_model else -0.002)
    target = load_model(settings.target, device="cpu")
    initial = load_initial(target, load_tokenizer(settings.target), settings)
    untrained = DraftModule(settings, initial, target, left_out=set(), steps=1)
    rates = cosine(torch.optim.SGD([torch.zeros(1)], 1.0), steps=untrained.steps)
    rates.step()
    assert rates.get_last_lr() == pytest.approx([0.0], abs=1e-9)  # at the end of the steps
    accept, *_ = untrained.agreement(data_of(settings).validation)
    assert float(accept.mean()) == pytest.approx(before, abs=1e-5)
    if begun == "trained":  # the same tokens, and the same weights are the target's
        description = json.loads((tmp_path / "draft" / "draft.json").read_text())
        assert description == json.loads((draft / "draft.json").read_text())
        return
    weights = [load_model(folder, device="cpu", target=target).state_dict() for folder in (draft, tmp_path / "draft")]
    equal = {name for name, value in weights[0].items() if torch.equal(value, weights[1][name])}
    assert equal == (set() if is_other_model else {"model.embed_tokens.weight", "lm_head.weight"})
    assert type(AutoModelForCausalLM.from_pretrained(tmp_path / "draft")) is type(target)


@pytest.mark.parametrize("begun", ["layers", "trained"])
def test_a_trimmed_draft_is_exported_with_the_whole_vocabulary(
    begun: str,
    finished: Path,
    trained: Path,
    settings: DraftTrainingOptions,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its logits of the kept tokens are those of the trimmed draft, and it has the target's whole output projection.

    The printed command decodes with it.
    """
    run = finished
    if begun == "trained":
        run = tmp_path / "run"
        train_draft(replace(continued(settings, trained), epochs=1), output=run)
    part, whole = export(run, tmp_path / "part"), tmp_path / "whole"
    capsys.readouterr()
    assert cli.main(["export", str(run), str(whole), "--whole-vocabulary"]) == 0
    printed = printed_arguments(capsys.readouterr().out)
    assert printed[:-1] == ["generate", "--target", settings.target, "--draft", str(whole)]
    assert cli.main([*printed, "--max-new-tokens", "4"]) == 0
    target = load_model(settings.target, device="cpu")
    trimmed: Any = load_model(part, device="cpu", target=target)
    model = AutoModelForCausalLM.from_pretrained(whole)
    assert torch.equal(model.lm_head.weight, target.get_output_embeddings().weight)  # type: ignore[arg-type, operator]
    ids, tokens = torch.tensor([TEXT]), trimmed.get_output_embeddings().tokens
    model = model.bfloat16().float()  # as the trimmed draft is stored
    trimmed = trimmed.bfloat16().float()
    expected = trimmed(input_ids=ids).logits[..., tokens]
    torch.testing.assert_close(model(input_ids=ids).logits[..., tokens], expected, rtol=1e-4, atol=1e-4)


def test_an_output_of_its_own_has_no_further_rows(settings: DraftTrainingOptions, tmp_path: Path) -> None:
    train_draft(replace(settings, own_output=True, epochs=1), output=tmp_path / "run")
    with refused("whole_vocabulary=True: the draft has an output projection of its own onto 200 tokens; leave it out"):
        export(tmp_path / "run", tmp_path / "draft", whole_vocabulary=True)


def test_unsupported_trainings_are_refused(
    work: Path, trained: Path, settings: DraftTrainingOptions, tmp_path: Path
) -> None:
    save_pair(tmp_path / "padded", draft_vocab=264)
    initial_settings = {"layers": None, "vocabulary": 8192}  # of an initial draft
    changes: list[tuple[dict[str, Any], str]] = [
        ({"positions": 2}, "positions=2:"),
        ({"features": "target"}, "layers=1:"),
        ({"features": "target", "layers": None, "own_output": True}, "own_output=True:"),
        ({"features": "target", "layers": None}, "features: an EAGLE-3 draft reads three of the target's layers"),
        ({"vocabulary": 258}, "vocabulary=258:"),
        ({"data": str(work / "others")}, "contains answers of another target, "),
        ({"initial": trained, "vocabulary": 8192}, "layers=1:"),
        (initial_settings | {"initial": trained, "positions": 2}, "positions=2:"),
        (initial_settings | {"initial": tmp_path / "padded" / "draft"}, "initial='.*':"),
        (initial_settings | {"initial": tmp_path / "nothing"}, "no such model folder"),
    ]
    for change, words in changes:
        if "initial" in change:
            change["initial"] = str(change["initial"])
        with refused(words):
            train_draft(replace(settings, **change), output=tmp_path / "run")
    assert not (tmp_path / "run" / "run.yaml").exists()


@pytest.mark.parametrize("changed", ["initial", "target"])
def test_models_that_changed_since_are_refused(
    changed: str, work: Path, trained: Path, settings: DraftTrainingOptions, tmp_path: Path
) -> None:
    draft = shutil.copytree(trained, tmp_path / "draft")
    target = shutil.copytree(work / "target", tmp_path / "target")
    settings = replace(continued(settings, draft), target=str(target), epochs=1)
    train_draft(settings, output=tmp_path / "run")
    file = draft / "draft.safetensors" if changed == "initial" else target / "model.safetensors"
    save_file({name: value * 2 for name, value in load_file(file).items()}, file, {"format": "pt"})
    with refused("is not the draft that the run began with|is not the target that the draft was trained for"):
        export(tmp_path / "run", tmp_path / "exported")
    with refused("other data|contains answers of another target"):
        train_draft(settings, output=tmp_path / "run", resume=True)


# Stored states


@pytest.mark.parametrize("features", [None, "target"])
def test_stored_states_train_the_same_draft(
    features: Literal["target"] | None,
    settings: DraftTrainingOptions,
    eagle_settings: DraftTrainingOptions,
    tmp_path: Path,
) -> None:
    """States are stored in bfloat16, so metrics agree only to its rounding. EAGLE-3's target computes in bfloat16."""
    settings = settings if features is None else replace(eagle_settings, vocabulary=None, dtype="bfloat16")
    runs = [tmp_path / "computed", tmp_path / "stored"]
    for cached, output in zip((False, True), runs, strict=True):
        train_draft(replace(settings, cache_states=cached), output=output)
    computed, stored = (json.loads((run / "result.json").read_text())["metrics"] for run in runs)
    for name in computed:
        tolerance = 0.02 if name == "greedy_agreement" else 1e-3  # two of a hundred tokens may differ
        assert stored[name] == pytest.approx(computed[name], abs=tolerance), name
    assert not (runs[1] / "states").exists()


def test_states_are_computed_once(work: Path, settings: DraftTrainingOptions, tmp_path: Path) -> None:
    target = load_model(settings.target, device="cpu")
    data = data_of(settings)
    teacher, console = Teacher(target, None), Console(file=io.StringIO())
    states = StateFolder(tmp_path / "states", len(data.windows.tokens))
    states.fill(teacher, data.windows, console)
    first, *_ = sorted((tmp_path / "states").iterdir())
    written = first.stat().st_mtime_ns
    StateFolder(tmp_path / "states", len(data.windows.tokens)).fill(teacher, data.windows, console)
    assert first.stat().st_mtime_ns == written
    taken_states = states.take(torch.tensor([3, 1]))
    windows = data.windows.take(torch.tensor([3, 1]))
    output = target(input_ids=windows.tokens.long(), output_hidden_states=True)
    torch.testing.assert_close(taken_states.states, output.hidden_states[-1].bfloat16(), rtol=2e-2, atol=1e-2)


def test_logits_that_are_no_projection_of_states_are_refused(tmp_path: Path) -> None:
    target = make(vocab=50)
    target.register_forward_hook(lambda model, inputs, output: output | {"logits": output["logits"] / 2})
    windows = pack([Document("a", [*range(1, 20)], 5)], 20)
    with pytest.raises(InputError, match="cache_states: the logits of llama are scaled or capped"):
        StateFolder(tmp_path / "states", 1).fill(Teacher(target, None), windows, Console(file=io.StringIO()))
    assert not any((tmp_path / "states").iterdir())


# EAGLE-3 drafts


@pytest.mark.parametrize("name", ["llama", "gemma3", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("kept", [[*range(0, 90, 2)], None])
def test_every_place_is_predicted_as_in_decoding(name: str, kept: list[int] | None) -> None:
    """In training all positions of a window are predicted together; here one at a time, with a cache that is cut.

    The prediction of position k reads the draft's own states of all drafted positions before it.
    """
    target = target_of(name)
    draft = state_draft(target, kept)
    keep_trimmed(draft)
    fuse = find_state_input(draft)
    assert fuse is not None
    width, places = 12, 4
    tokens = torch.tensor([TEXT[:width]])
    windows = Windows(tokens, torch.ones_like(tokens, dtype=torch.bool))
    layers = layer_modules(target, [1], target.config.num_hidden_layers)
    _, states = forward_with_hidden(target, None, layers, input_ids=tokens, use_cache=False)
    together = torch.stack([*draft_logits(draft, windows, states, places)])  # (J, T - 1, M), without the first token
    embeddings = draft.get_input_embeddings()(tokens[:, 1:])
    before = fuse.from_target(states[:, :-1])
    for start in range(width - places):  # the draft follows the tokens up to start + 1
        cache = DynamicCache()
        inputs = fuse(embeddings[:, : start + 1], before[:, : start + 1])
        for place in range(places):
            logits, draft_states = forward_with_hidden(
                draft, inputs_embeds=inputs, past_key_values=cache, use_cache=True
            )
            torch.testing.assert_close(together[place, start + place], logits[0, -1], rtol=1e-4, atol=1e-4)
            if place + 1 < places:
                inputs = fuse(embeddings[:, start + place + 1 : start + place + 2], draft_states[:, -1:])


def test_the_first_tokens_of_a_window_are_not_learned(eagle_settings: DraftTrainingOptions) -> None:
    documents = read_documents(eagle_settings.folders, load_tokenizer(eagle_settings.target))
    plain = DraftDataModule(documents, eagle_settings)
    data = DraftDataModule(documents, eagle_settings, unread=3)
    for part, plain_part in ((data.training, plain.training), (data.validation, plain.validation)):
        assert not part.learned[:, :3].any()
        assert torch.equal(part.learned[:, 3:], plain_part.learned[:, 3:])
    with refused("window=3: must be larger than positions=3"):
        DraftDataModule(documents, replace(eagle_settings, window=3), unread=3)


def test_the_layers_that_a_new_draft_reads() -> None:
    assert [choose_state_layers(count) for count in (3, 4, 5, 6, 7, 8, 30)] == [
        (1, 2, 3), (1, 2, 3), (1, 3, 4), (1, 3, 5), (2, 3, 4), (2, 4, 5), (2, 15, 27),
    ]  # fmt: skip
    with refused("the target has 2"):
        choose_state_layers(2)


def test_a_new_draft_begins_as_an_early_exit() -> None:
    """A new draft has the target's last layer, norms and output, and its state is the last one that it reads."""
    target = target_of("llama")
    draft = new_eagle3(target, [1, 2], None)
    weights, layer = draft.state_dict(), target.model.layers[-1].state_dict()
    for name in ("mlp.up_proj.weight", "self_attn.o_proj.weight", "post_attention_layernorm.weight"):
        assert torch.equal(weights[f"model.layers.0.{name}"], layer[name])
    assert torch.equal(weights["model.layers.0.self_attn.q_proj.weight"][:, HIDDEN:], layer["self_attn.q_proj.weight"])
    assert torch.equal(weights["model.layers.0.hidden_norm.weight"], layer["input_layernorm.weight"])
    assert torch.equal(weights["lm_head.norm.weight"], target.model.norm.weight)
    assert torch.equal(weights["lm_head.weight"], target.lm_head.weight)
    fuse = find_state_input(draft)
    assert fuse is not None
    states = torch.randn(5, 3 * HIDDEN, generator=torch.Generator().manual_seed(0))
    difference = fuse.from_target(states) - states[:, -HIDDEN:]
    assert float(difference.std()) < 0.3


@pytest.fixture(scope="module")
def trained_eagle(work: Path, eagle_settings: DraftTrainingOptions) -> Path:
    """Return the folder of a trained EAGLE-3 draft; the run is in a folder beside it."""
    train_draft(eagle_settings, output=work / "eagle-run")
    return export(work / "eagle-run", work / "eagle")


def test_a_trained_eagle3_draft_decodes_exactly(
    trained_eagle: Path, eagle_settings: DraftTrainingOptions, tmp_path: Path
) -> None:
    """The exported draft has the weights of the best epoch, q of the written-out computation, and the target's text."""
    target = load_model(eagle_settings.target, device="cpu")
    best = torch.load(trained_eagle.parent / "eagle-run" / "checkpoints" / "best.ckpt", weights_only=True)["head"]
    assert "model.embed_tokens.weight" not in best
    draft = load_model(trained_eagle, device="cpu", target=target)
    weights = draft.state_dict()
    initial = new_eagle3(target, choose_state_layers(4), draft.get_output_embeddings().tokens.tolist()).state_dict()
    for name, value in best.items():
        torch.testing.assert_close(weights[name], value, rtol=1e-2, atol=1e-2)  # stored in bfloat16
        assert not torch.equal(initial[name], value), name
    assert_seeded_texts_are_the_targets(target, draft, [TEXT, [3, 1], [7]])
    written = [file.read_text() for file in trained_eagle.glob("*.json")]
    assert not any(str(trained_eagle.parent) in text for text in written)


def test_training_continues_an_eagle3_draft(
    trained_eagle: Path, eagle_settings: DraftTrainingOptions, tmp_path: Path
) -> None:
    settings = replace(eagle_settings, initial=str(trained_eagle), features=None, vocabulary=8192, epochs=1)
    result = train_draft(settings, output=tmp_path / "run")
    first = json.loads((trained_eagle.parent / "eagle-run" / "result.json").read_text())["metrics"]
    assert result.metrics["acceptance"] > first["acceptance"] - 0.01
    export(tmp_path / "run", tmp_path / "draft")
    config, before = (
        json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "draft", trained_eagle)
    )
    assert config == before


def test_a_run_of_the_earlier_architecture_is_refused(
    trained_eagle: Path, eagle_settings: DraftTrainingOptions, tmp_path: Path
) -> None:
    run = shutil.copytree(trained_eagle.parent / "eagle-run", tmp_path / "run")
    for file in (run / "checkpoints").glob("*.ckpt"):
        values = torch.load(file, weights_only=True)
        weights = values["head" if "head" in values else "state_dict"]
        weights["state_input.linear.weight" if "head" in values else "head.state_input.linear.weight"] = torch.ones(2)
        torch.save(values, file)
    with refused("the run trained a draft with the weights state_input.linear.weight"):
        export(run, tmp_path / "draft")
    with refused("the run trained a draft with the weights state_input.linear.weight"):
        train_draft(replace(eagle_settings, epochs=4), output=run, resume=True)


@pytest.mark.parametrize("problem", ["other files", "not free", "NaN"])
def test_a_draft_that_cannot_be_written_is_refused(problem: str, tmp_path: Path) -> None:
    target = target_of("llama")
    draft = state_draft(target)
    settings: dict[str, Any] = {"name": "target", "speculative_tokens": 3, "dtype": torch.float32}
    if problem == "NaN":
        draft.get_output_embeddings().weight.fill_(torch.nan)
    else:
        (tmp_path / "draft").mkdir()
        (tmp_path / "draft" / "notes.txt").write_text("mine")
        settings["overwrite"] = problem == "other files"
    words = {"NaN": "holds NaN or infinite weights", "not free": "is not empty", "other files": "holds other files"}
    with refused(words[problem]):
        save_eagle3(draft, tmp_path / "draft", target, **settings)
