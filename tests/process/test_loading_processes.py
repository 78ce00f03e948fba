"""Loading models in separate processes: the command that converts pickles, and a hub that does not answer."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from specpilot.common.errors import InputError
from specpilot.models.loading.model_files import Source, check_format
from specpilot.models.loading.names import load_model

from ..helpers.refusals import refused
from ..helpers.tiny import make, save_pair


def test_weights_in_pickles_are_refused_with_what_converts_them(tmp_path: Path) -> None:
    model = make()
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"in \.bin files, pickles, which are not read; convert them: ") as raised:
        load_model(tmp_path)
    command = str(raised.value).partition("convert them: ")[2].replace("python -c", f"{sys.executable} -c")
    subprocess.run(command, shell=True, check=True)
    assert all(map(torch.equal, load_model(tmp_path).parameters(), model.parameters()))
    with refused("convert them: hf download gpt2 --revision old --local-dir gpt2 && cd gpt2 && python -c"):
        check_format("gpt2", Source("gpt2", frozenset(["pytorch_model.bin"]), "old"))


CLIENT = """
import json, sys, time
from specpilot.common.errors import InputError
from specpilot.data_gen.prompts import load_prompts
from specpilot.models.loading.names import load_model, load_tokenizer

waits = []
time.sleep = waits.append  # before a request is repeated

def attempt(name, revision=None):
    try:
        if revision == "prompts":
            return len(load_prompts(name))
        model, tokenizer = load_model(name, revision=revision, device="cpu"), load_tokenizer(name, revision=revision)
        return [model.config.num_hidden_layers, len(tokenizer)]
    except InputError as error:
        return str(error)

print(json.dumps([[attempt(*names) for names in json.loads(sys.argv[1])], waits]))
"""


PAIR = """
import json, sys
from specpilot.cli.main import main
from specpilot.data_gen.dataset import read_manifest
from specpilot.infer.decoder import SpeculativeDecoder

out = sys.argv[1]
pair = ["--target", "gpt2@main", "--draft", "gpt2@old", "--device", "cpu", "--no-chat", "--max-new-tokens", "4"]
data = ["data", "acceptance", *pair, "--prompts", f"{out}/prompts.txt", "--output", f"{out}/data"]
router = ["data", "router", "--target", "gpt2", "--arms", "[gpt2@old,gpt2@main,autoregressive]", "--device", "cpu"]
router += ["--no-chat", "--max-new-tokens", "4", "--prompts", f"{out}/prompts.txt", "--output", f"{out}/router"]
assert [main(words) for words in (data, data, router)] == [0, 0, 0]
assert main([*data, "--draft", "gpt2@main"]) == 2  # another run
acceptance, routed = (read_manifest(f"{out}/{name}") for name in ("data", "router"))
decoder = SpeculativeDecoder.from_pretrained("gpt2", "gpt2@old", length=2, device="cpu")
layers = [model.model.config.num_hidden_layers for model in (decoder.target, *decoder.drafts)]
arms = [arm.name for arm in routed.arms]
print(json.dumps([acceptance.target, acceptance.draft, arms, layers, decoder.plan.describe()]))
"""


def test_drafts_and_datasets_name_revisions(tmp_path: Path) -> None:
    """A dataset records the revisions of its models. Other revisions make another dataset."""
    environment = hub_cache(tmp_path)
    (tmp_path / "prompts.txt").write_text("one\ntwo\nthree\nfour\n")
    command = [sys.executable, "-c", PAIR, str(tmp_path)]
    ended = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    target, draft, arms, layers, plan = json.loads(ended.stdout.splitlines()[-1])
    assert (target, draft, arms) == ("gpt2@main", "gpt2@old", ["gpt2@old", "gpt2@main", "autoregressive"])
    assert layers == [2, 1]
    assert "draft: gpt2@old, float32" in plan
    assert "draft" in ended.stderr.splitlines()[-1]
    assert "belongs to a run with other settings" in ended.stderr


def hub_cache(folder: Path) -> dict[str, str]:
    """Return variables of a process with two cached revisions of the model gpt2 and a hub that does not answer."""
    save_pair(folder)
    hub = folder / "hf" / "hub" / "models--gpt2"
    for commit, (branch, source) in enumerate({"main": "target", "old": "draft"}.items()):
        shutil.copytree(folder / source, hub / "snapshots" / f"{commit:040}")
        (hub / "refs").mkdir(exist_ok=True)
        (hub / "refs" / branch).write_text(f"{commit:040}")
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    environment |= {"HF_ENDPOINT": "http://127.0.0.1:1", "HF_HOME": str(folder / "hf")}
    return environment | {"HF_HUB_OFFLINE": "0", "OMP_NUM_THREADS": "1"}


def test_ids_of_the_hub_are_loaded_from_its_cache_where_it_is_away(tmp_path: Path) -> None:
    """An id without a slash is loaded, too. No request is repeated."""
    environment = hub_cache(tmp_path)
    names = [["gpt2"], ["gpt2", "old"], ["gpt2@old"], ["tinny"], ["owner/tinny"], ["owner/nothing", "prompts"]]
    names += [["gpt2@older"], ["gpt2@old", "main"], ["gpt2@"]]
    command = [sys.executable, "-c", CLIENT, json.dumps(names)]
    ended = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    (main, *old, unknown, elsewhere, prompts, older, twice, empty), waits = json.loads(ended.stdout)
    assert (main, old, waits) == ([2, 257], [[1, 257]] * 2, [])
    assert older.startswith("gpt2@older: no such folder, and not found on the hub (ConnectError")
    assert twice.startswith("gpt2@old: names a revision, and revision='main' names another one")
    assert empty.startswith("gpt2@: names no revision after '@'")
    assert unknown.startswith("tinny: no such folder, and not found on the hub (ConnectError")
    assert "or a shipped model: tiny, tiny-draft, " in unknown
    assert elsewhere.startswith("owner/tinny: no such folder, and not found on the hub (ConnectError")
    assert prompts.startswith("owner/nothing: no such file or folder, and no dataset on the hub (")
