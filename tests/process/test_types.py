"""A type checker sees the types of the public functions: mypy reads a user's script."""

import os
import subprocess
import sys
from pathlib import Path

import specpilot

SCRIPT = Path(__file__).parents[1] / "files" / "typed_script.py"
# Libraries whose types the script does not need; reading them takes minutes.
SKIPPED = (
    "torch", "transformers", "tokenizers", "datasets", "pytorch_lightning", "torchmetrics", "huggingface_hub", "numpy",
    "scipy", "sklearn", "pyarrow", "pydantic", "jsonargparse", "rich", "wandb",
)  # fmt: skip


def test_a_script_of_a_user_is_checked(tmp_path: Path) -> None:
    """Results have the asserted types, and each misspelt keyword and wrong value in the script is an error."""
    config = tmp_path / "mypy.ini"
    sections = ",mypy-".join(f"{name}.*" for name in SKIPPED)
    config.write_text(
        f"[mypy]\nstrict = true\ncache_dir = {tmp_path / 'cache'}\n"
        f"[mypy-{sections}]\nfollow_imports = skip\nignore_missing_imports = true\n"
    )
    folder = Path(specpilot.__file__).parents[1]
    path = {} if folder.name == "site-packages" else {"MYPYPATH": str(folder)}
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), str(SCRIPT)]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
