"""The tables and figures of assistant selection (Huang et al. 2024), from measured generations and stored rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .study import (
    AUTOREGRESSIVE,
    EPOCHS,
    PAPER,
    Choices,
    RouterBenchOptions,
    Study,
    accuracy,
    embeddings,
    expected_throughput,
    greedy,
    sampled,
    serving,
    subset,
)

MOST_EPOCHS, EXAMPLES_SEEN = 100, 7200
NEIGHBOURS = 15
Array = NDArray[np.float64]


def paper_tables(work: RouterBenchOptions, study: Study) -> dict[str, Any]:
    """Return all tables and figures except those of other temperatures."""
    fixed, main, no_help = str(work.length), [*work.drafts, AUTOREGRESSIVE], [*work.pair, AUTOREGRESSIVE]
    everywhere = list(dict.fromkeys(row.domain for row in study.train.rows))
    exits = [f"exit:{layer}" for layer in work.exits]
    sets = {"all drafts": list(work.drafts), "specialists": list(work.drafts[1:]), "with autoregressive": main}
    tables = {
        "table_1": arm_set_table(study, work.pair, fixed, work.pair_domains or everywhere),
        "table_1_paper_settings": arm_set_table(study, work.pair, fixed, work.pair_domains or everywhere, **PAPER),
        "figure_2": alpha_sweep(study, [work.drafts[0], *exits] if exits else work.drafts, fixed, work.alphas),
        "figure_3": example_curve(study, main, fixed, work.examples, work.seeds),
        "table_3_4": arm_set_table(study, no_help, fixed, everywhere),
        "table_5": {
            name: arm_set_table(study, arms, fixed, everywhere) for name, arms in sets.items() if len(arms) > 1
        },
        "tables_11_12": {
            str(k): arm_set_table(study, work.drafts, str(k), everywhere) for k in sorted({*work.lengths, work.length})
        },
    }
    if exits:
        tables["table_6"] = arm_set_table(study, [*exits, AUTOREGRESSIVE], fixed, everywhere)
    return tables


def arm_set_table(
    study: Study, arms: Sequence[str], length: str, domains: Sequence[str], **settings: Any
) -> dict[str, Any]:
    """Return one of the paper's tables: single arms, greedy and dynamic policy, in each domain and on average.

    Args:
        study: prompts, rewards and timings.
        length: label of the length controller.
        arms: the arms. Speed-ups are over autoregressive decoding, also if it is not among them.
        domains: domains on which policies are trained and compared.
        settings: training settings. Default: :func:`serving`.
    """
    settings = settings or serving(length)
    where = study.domains
    policy = study.policy(arms, domains, **settings)
    rows: dict[str, Choices] = {name: np.full(len(where), i) for i, name in enumerate(arms)}
    rows |= {"policy, greedy": greedy(policy), "policy, dynamic": sampled(policy)}
    present = [domain for domain in domains if (where == domain).any()]
    table: dict[str, Any] = {}
    for name, choices in rows.items():
        table[name] = {domain: study.timings.row(arms, choices, length, where == domain) for domain in present}
        table[name]["average"] = float(np.mean([cell["speedup"] for cell in table[name].values()]))
    chosen = {domain: np.bincount(greedy(policy)[where == domain], minlength=len(arms)).tolist() for domain in present}
    return {"arms": list(arms), "settings": settings, "rows": table, "chosen": chosen}


def alpha_sweep(study: Study, arms: Sequence[str], length: str, alphas: Sequence[float]) -> list[dict[str, Any]]:
    """Return Figure 2: choices and speed of a dynamic policy by α, the weight of alignment against measured cost."""
    rows = []
    for alpha in alphas:
        settings = {**serving(length), "reward": "rouge", "cost": "time", "alpha": alpha}
        policy = study.policy(arms, **settings)
        shares = dict(zip(arms, policy.mean(0).tolist(), strict=True))
        rows.append({"alpha": alpha, "shares": shares, **study.timings.row(arms, sampled(policy), length)})
    return rows


def example_curve(
    study: Study, arms: Sequence[str], length: str, examples: Sequence[int], seeds: int
) -> list[dict[str, Any]]:
    """Return Figure 3: speed and selection accuracy by the number of training prompts, as means over seeds.

    Smaller sets are trained for more epochs, up to ``MOST_EPOCHS``, to keep the number of steps similar.
    """
    expected, where, most = study.expected(arms, length), study.domains, len(study.train.rows)
    rows = []
    for count in [n for n in examples if n < most] + [most]:
        epochs = min(MOST_EPOCHS, max(EPOCHS, EXAMPLES_SEEN // count))
        settings = serving(length) | {"examples": count, "epochs": epochs}
        selections = [greedy(study.policy(arms, **settings, seed=seed)) for seed in range(seeds)]
        hits = [accuracy(choices, expected, where) for choices in selections]
        speeds = [study.timings.row(arms, choices, length)["speedup"] for choices in selections]
        rows.append(
            {
                "examples": count,
                "speedup": float(np.mean(speeds)),
                "speedup_by_seed": speeds,
                "selection_accuracy": float(
                    np.mean([hit["where_domains_differ"] or hit["all_domains"] for hit in hits])
                ),
            }
        )
    return rows


def baseline_choices(x: Array, rewards: Array, new: Array, new_rewards: Array) -> dict[str, Choices]:
    """Return the arm that each baseline on the policy's features chooses for each of the M ``new`` prompts.

    Fitted to embeddings ``x`` (N, d) and ``rewards`` (N, A); those of the ``new`` prompts are (M, d) and (M, A).

    * best_single: the arm of the highest mean reward.
    * logistic: logistic regression of the best arm on standardised embeddings.
    * neighbours: the arm of the highest mean reward among the nearest prompts.
    * oracle: the best arm of the new prompt.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    best = rewards.argmax(1)
    single = int(rewards.mean(0).argmax())
    baselines: dict[str, Any] = {"best_single": np.full(len(new), single)}
    if len(np.unique(best)) == 1:  # a single class cannot be fitted
        baselines["logistic"] = np.full(len(new), best[0])
    else:
        baselines["logistic"] = (
            make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(x, best).predict(new)
        )
    nearest = make_pipeline(StandardScaler(), KNeighborsRegressor(min(NEIGHBOURS, len(x)))).fit(x, rewards)
    baselines["neighbours"] = nearest.predict(new).argmax(1)
    baselines["oracle"] = new_rewards.argmax(1)
    return {name: np.asarray(choice, dtype=np.int64) for name, choice in baselines.items()}


def selection(study: Study, arms: Sequence[str], length: str) -> dict[str, Any]:
    """Return the policies and baselines on the same features, evaluated by expected rewards and by measured time."""
    expected, where = study.expected(arms, length), study.domains
    selected: dict[str, Choices] = {
        name: greedy(study.policy(arms, **settings))
        for name, settings in (
            ("policy, throughput", serving(length)),
            ("policy, throughput, sampled gradient", serving(length) | {"gradient": "sampled"}),
            ("policy, throughput, paper's training", {"reward": "throughput", "length": int(length)}),
            ("policy, ROUGE-L", serving(length) | PAPER),
            ("policy, ROUGE-L, paper's training", PAPER),
        )
    }
    throughputs = expected_throughput(subset(study.train, arms), length)
    x, new = embeddings(study.train).astype(float), embeddings(study.test).astype(float)
    selected |= baseline_choices(x, throughputs, new, expected)
    selected["random"] = np.random.default_rng(0).integers(len(arms), size=len(expected))
    rows = np.arange(len(expected))
    result = {}
    for name, choices in selected.items():
        hits, row = accuracy(choices, expected, where), study.timings.row(arms, choices, length)
        del row["ms_per_token"]
        result[name] = {
            "accuracy": hits["all_domains"],
            "accuracy_where_domains_differ": hits["where_domains_differ"],
            "reward": float(expected[rows, choices].mean()),
            "regret": float((expected.max(1) - expected[rows, choices]).mean()),
            **row,
        }
    return result
