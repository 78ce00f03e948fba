"""Drafts with a trimmed vocabulary, and with the target's embedding: their folders, their logits, exactness."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from specpilot.cli import main as cli
from specpilot.common.errors import InputError
from specpilot.controllers.checkpoints.fingerprint import model_fingerprint
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.models import CausalLM, Read
from specpilot.models.forwards import Lean
from specpilot.models.loading.draft_folder import save_draft
from specpilot.models.loading.names import load_model, load_tokenizer
from specpilot.models.trimmed_head import TrimmedHead
from transformers import PreTrainedModel

from ..helpers.architectures import VOCAB, target_of
from ..helpers.drafts import KEPT, TEXT, shared_pair, trimmed
from ..helpers.tiny import byte_tokenizer, make, save_pair


def logits_of(model: PreTrainedModel, tokens: list[int] = TEXT) -> torch.Tensor:
    return model(input_ids=torch.tensor([tokens])).logits[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["llama", "qwen3-padded-target", "gemma3", "gpt2", "bloom", "phi", "phi3-longrope"])
def test_logits_are_those_of_the_whole_model_at_the_kept_tokens(name: str) -> None:
    whole = CausalLM(target_of(name))
    kept = [token for token in KEPT if token < whole.vocab_size]
    cut = CausalLM(trimmed(target_of(name), kept))
    assert (cut.vocab_size, cut.hidden_size) == (whole.vocab_size, whole.hidden_size)
    assert cut.together == whole.together
    lean = [isinstance(model.strategy, Lean) for model in (cut, whole)]
    assert lean == [name in ("llama", "qwen3-padded-target")] * 2
    long = [(7 * i) % 90 for i in range(60)]  # longer than longrope's switch
    results = []
    for model in (whole, cut):
        cache = model.new_cache()
        for text in ("a", "b"):
            cache.add(text, 100)
        reads = [[Read("a", long, 3), Read("b", TEXT, 2)], [Read("a", [1, 2], 2), Read("b", [4], 1)]]
        results.append([model.forward(cache, each) for each in reads])
    is_removed = torch.ones(cut.vocab_size, dtype=torch.bool)
    is_removed[kept] = False
    for (whole_logits, whole_states), (trimmed_logits, trimmed_states) in zip(*results, strict=True):
        assert bool((trimmed_logits[:, is_removed] == -torch.inf).all())
        torch.testing.assert_close(trimmed_logits[:, kept], whole_logits[:, kept], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(trimmed_states, whole_states, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("architecture", "kept", "dtype"),
    [
        *((name, kept, "float32") for name in ("llama", "gemma3", "gpt2") for kept in (KEPT, None)),
        ("llama", KEPT, "bfloat16"), ("llama", KEPT, "float64"),
    ],
)  # fmt: skip
def test_a_draft_with_the_targets_embedding_loads_with_it(
    architecture: str, kept: list[int] | None, dtype: str, tmp_path: Path
) -> None:
    """The draft loads in any precision, and the precision does not change its fingerprint."""
    draft = shared_pair(tmp_path, architecture, kept)
    target = load_model(tmp_path / "target", device="cpu", dtype=dtype)
    loaded = load_model(tmp_path / "draft", device="cpu", dtype=dtype, target=target)
    assert {parameter.dtype for parameter in loaded.parameters()} == {getattr(torch, dtype)}
    embedding: Any = target.get_input_embeddings()
    assert loaded.get_input_embeddings().weight.data_ptr() == embedding.weight.data_ptr()  # type: ignore[operator]
    expected, loaded_logits = logits_of(draft.to(getattr(torch, dtype))), logits_of(loaded)
    if dtype != "bfloat16":  # whose products are rounded otherwise
        torch.testing.assert_close(loaded_logits if kept is None else loaded_logits[:, kept], expected)
    assert (loaded_logits == -torch.inf).any() == (kept is not None)
    stored = (tmp_path / "draft" / "draft.safetensors").stat().st_size
    assert stored < sum(4 * parameter.numel() for parameter in draft.parameters()) - embedding.weight.numel() * 4
    by_name = load_model(tmp_path / "draft", device="cpu", target=str(tmp_path / "target"))
    assert model_fingerprint(by_name) == model_fingerprint(loaded)


def test_another_target_is_refused_by_name(tmp_path: Path) -> None:
    shared_pair(tmp_path)
    place = tmp_path / "draft"
    with pytest.raises(InputError, match="a draft with the embedding of its-target; load it as the draft of that"):
        load_model(place, device="cpu")
    other = make(vocab=VOCAB)
    other.save_pretrained(tmp_path / "other")
    byte_tokenizer().save_pretrained(tmp_path / "other")
    with pytest.raises(InputError, match=f"embedding of its-target; the target {tmp_path / 'other'} is another model"):
        SpeculativeDecoder.from_pretrained(tmp_path / "other", place, device="cpu")
    with pytest.raises(InputError, match="device_map: "):
        load_model(place, device_map="auto")


def test_a_folder_is_replaced_only_by_a_draft(tmp_path: Path) -> None:
    draft = shared_pair(tmp_path)
    options: dict[str, Any] = {"target": None, "dtype": torch.float32}
    with pytest.raises(InputError, match="pass --overwrite"):
        save_draft(draft, tmp_path / "draft", byte_tokenizer(), **options)
    save_draft(draft, tmp_path / "draft", byte_tokenizer(), **options, overwrite=True)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").touch()  # a draft has such a file as well
    for name in ("target", "model"):
        with pytest.raises(InputError, match="holds other files than a draft"):
            save_draft(draft, tmp_path / name, byte_tokenizer(), **options, overwrite=True)
    (tmp_path / "draft" / "mine.txt").touch()
    with pytest.raises(InputError, match=r"'mine\.txt', which would be lost"):
        save_draft(draft, tmp_path / "draft", byte_tokenizer(), **options, overwrite=True)
    draft.get_parameter("model.norm.weight").data[0] = torch.nan
    with pytest.raises(InputError, match=r"model\.norm\.weight holds NaN"):
        save_draft(draft, tmp_path / "new", byte_tokenizer(), **options)
    assert not (tmp_path / "new").exists()


def test_trim_vocabulary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command line trims a draft, and a trimmed draft again."""
    target, draft = save_pair(tmp_path)
    (tmp_path / "p.txt").write_text("".join(f"prompt {i} {'word ' * (i % 3)}\n" for i in range(16)))
    words = ["--data", str(tmp_path / "p.txt"), "--output"]
    assert cli.main(["trim-vocabulary", draft, "--keep", "120", *words, str(tmp_path / "trimmed")]) == 0
    trimmed = f"{tmp_path / 'trimmed'}: a draft that proposes 120 tokens."
    step = f"pass --draft {tmp_path / 'trimmed'} to 'specpilot generate', and the target of the draft as --target."
    assert capsys.readouterr().out.rstrip() == f"{trimmed} To decode with it, {step}"
    paired = ["trim-vocabulary", draft, "--target", target, "--keep", "120", *words, str(tmp_path / "paired")]
    assert cli.main(paired) == 0
    command = f"specpilot generate --target {target} --draft {tmp_path / 'paired'} 'Write a short story.'"
    assert capsys.readouterr().out.rstrip().endswith(f" Decode with it: {command}")
    loaded, whole = load_model(tmp_path / "trimmed", device="cpu"), load_model(draft, device="cpu")
    head = loaded.get_output_embeddings()
    assert isinstance(head, TrimmedHead)
    kept = head.tokens.tolist()
    tokenizer = load_tokenizer(target)
    assert len(kept) == 120
    assert {*tokenizer("prompt word 0123456789")["input_ids"], tokenizer.eos_token_id} <= {*kept}
    torch.testing.assert_close(logits_of(loaded)[:, kept], logits_of(whole)[:, kept])
    again = ["trim-vocabulary", str(tmp_path / "trimmed"), *words]
    assert cli.main([*again, str(tmp_path / "less"), "--keep", "15"]) == 0
    less = load_model(tmp_path / "less", device="cpu")
    fewer = less.get_output_embeddings().tokens.tolist()  # type: ignore[union-attr, operator]
    assert {*fewer} < {*kept}
    torch.testing.assert_close(logits_of(less)[:, fewer], logits_of(whole)[:, fewer])
    assert cli.main([*again, str(tmp_path / "more"), "--keep", "121"]) == 2
    assert "keep=121:" in capsys.readouterr().err
    assert cli.main([*again, str(tmp_path / "less"), "--keep", "9"]) == 2
    assert "pass --overwrite" in capsys.readouterr().err


def test_code_of_the_draft_runs_only_if_it_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft's own class leaves a file when its code runs."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])  # transformers adds the folder of the modules
    _, draft = save_pair(tmp_path)
    mark, settings = tmp_path / "executed", Path(draft) / "config.json"
    (Path(draft) / "code_of_draft.py").write_text(
        "from pathlib import Path\n"
        "from transformers import LlamaForCausalLM\n"
        f"Path({str(mark)!r}).touch()\n"
        "class Draft(LlamaForCausalLM): pass\n"
    )
    classes = {"auto_map": {"AutoModelForCausalLM": "code_of_draft.Draft"}}
    settings.write_text(json.dumps(json.loads(settings.read_text()) | classes))
    (tmp_path / "p.txt").write_text("".join(f"prompt {i}\n" for i in range(16)))
    words = ["trim-vocabulary", draft, "--keep", "120", "--data", str(tmp_path / "p.txt"), "--output"]
    assert cli.main([*words, str(tmp_path / "plain")]) == 0
    assert not mark.exists()
    assert cli.main([*words, str(tmp_path / "trusted"), "--trust-remote-code"]) == 0
    assert mark.exists()
