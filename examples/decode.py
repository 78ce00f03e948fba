"""Decode one prompt with several length controllers and print the number of forwards of each.

Run ``python examples/decode.py`` in an environment with specpilot. It uses the included models and takes a few seconds.
The texts of all controllers are the same, because each call has the same seed.
"""

from specpilot import SpeculativeDecoder

PROMPT = "Write a bash command for this task.\nTask: Count the lines of every log file below /var/log\nCommand:"

for length in ("none", "4", "cumulative-confidence:0.3", "tiny-head"):
    decoder = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length=length)
    output = decoder.generate(PROMPT, max_new_tokens=64, seed=1)
    stats = output.stats
    print(
        f"{length:28} {stats.n_target_forwards:3} target forwards, {stats.n_draft_forwards:3} draft forwards, "
        f"{stats.tokens_per_forward:.2f} tokens per target forward: {output.text!r}"
    )
