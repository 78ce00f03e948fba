"""Every option of a command has a test in which it changes something."""

import ast
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

from specpilot.cli.main import COMMANDS, Commands
from specpilot.controllers.registry import PREDICTORS

ROOT = Path(__file__).parents[2]

# The test that shows the effect, and the options, as CLASS.option: the class defines the option.
EFFECTS: dict[str, str] = {
    # models
    "tests/integration/test_loading.py::test_dtypes": "LoadingOptions.dtype FeatureSourceOptions.dtype",
    "tests/integration/test_loading.py::test_maps_of_one_device": "DeviceOptions.device PlacementOptions.device_map",
    "tests/integration/test_loading.py::test_experts_that_are_offloaded": "PlacementOptions.offload_folder",
    "tests/integration/test_loading.py::test_damaged_folders": "LoadingOptions.trust_remote_code",
    "tests/integration/test_trimmed_drafts.py::test_code_of_the_draft_runs_only_if_it_is_trusted":
        "TrimOptions.trust_remote_code",
    "tests/process/test_loading_processes.py::test_ids_of_the_hub_are_loaded_from_its_cache_where_it_is_away":
        "DecodingOptions.revision",
    "tests/integration/test_defaults.py::test_the_fastest_precision_is_chosen": "DraftPrecisionOptions.draft_dtype",
    "tests/unit/test_controller_checkpoints.py::"
    "test_check_pair_by_the_tokenizer_takes_other_models_and_no_other_tokenizer": "PairCheckOptions.pair_check",
    "tests/gguf/test_gguf_pairs.py::test_a_file_without_it_has_one_made_of_llama_cpps": "DecodingOptions.tokenizer",
    # decoding
    "tests/integration/test_plan.py::test_what_drafts":
        "TargetOptions.target DecodingOptions.draft LengthOptions.length LengthOptions.cost DecodingOptions.tree "
        "DecodingOptions.copies DecodingOptions.beams",
    "tests/integration/test_plan.py::test_rules": "DecodingOptions.verifier",
    "tests/integration/test_one_seed_one_text.py::test_texts_do_not_depend_on_the_exponent_of_the_draft":
        "DecodingOptions.draft_exponent",
    "tests/process/test_serve.py::test_a_controller_is_loaded_again_with_its_threshold": "LengthOptions.threshold",
    "tests/integration/test_routing.py::test_a_trained_router_by_name":
        "DecodingOptions.router DecodingOptions.sample_arm",
    "tests/integration/test_cost_model.py::test_auto_measures_and_adapts": "DecodingOptions.adapt",
    "tests/unit/test_joint_decoding.py::test_beams_as_wide_as_all_sequences_find_the_most_probable":
        "DecodingOptions.argmax",
    "tests/integration/test_python_api.py::test_the_checkpoints_own_sampling_settings":
        "DecodingOptions.generation_config",
    "tests/integration/test_scheduler.py::test_as_finished": "DecodingOptions.max_running",
    "tests/integration/test_scheduler.py::test_texts_have_at_most_so_many_columns": "DecodingOptions.max_columns",
    "tests/integration/test_accelerators.py::test_results_are_those_of_other_forwards": "DecodingOptions.graphs",
    "tests/integration/test_python_api.py::test_sampling_parameters_in_one_object":
        "GenerateOptions.max_new_tokens GenerateOptions.temperature GenerateOptions.top_k GenerateOptions.top_p",
    "tests/integration/test_accelerators.py::test_a_seed_gives_the_same_rounds": "SeedOptions.seed",
    "tests/integration/test_one_seed_one_text.py::test_without_a_seed_every_text_has_another": "GenerateOptions.seed",
    "tests/unit/test_prompting.py::test_text_and_chat":
        "GenerateOptions.chat GenerateOptions.system PromptSourceOptions.chat PromptSourceOptions.system",
    "tests/process/test_cli.py::test_prompts_and_flags_among_the_arguments": "GenerateOptions.prompt",
    "tests/process/test_cli.py::test_generate_prints_the_text": "GenerateOptions.stream",
    "tests/process/test_cli.py::test_colour": "GenerateOptions.color",
    "tests/process/test_cli.py::test_json_and_stats": "GenerateOptions.json GenerateOptions.stats",
    "tests/process/test_prompt_files.py::test_several_samples":
        "GenerateOptions.n BatchOptions.limit BatchOptions.prompts",
    "tests/process/test_prompt_files.py::test_torn_lines_and_other_settings": "BatchOptions.output BatchOptions.trace",
    # the server
    "tests/process/test_serve_access.py::test_without_a_key_foreign_names_and_pages_are_refused":
        "ServeOptions.allow_hosts ServeOptions.allow_origins",
    "tests/process/test_serve.py::test_keys": "ServeOptions.api_key",
    "tests/unit/test_option_effects.py::test_the_log_and_the_end_of_a_server":
        "ServeOptions.drain ServeOptions.log_requests",
    "tests/unit/test_option_effects.py::test_the_name_of_the_served_model": "ServeOptions.served_model_name",
    "tests/process/test_serve_process.py::test_a_taken_port": "ServeOptions.host ServeOptions.port",
    "tests/process/test_serve_connections.py::test_idle_connections_stay_open_as_long_as_the_option_says":
        "ServeOptions.keep_alive",
    "tests/process/test_serve_process.py::test_after_kill_9_the_logged_shards_are_whole": "ServeOptions.log_rounds",
    "tests/process/test_serve_connections.py::test_a_body_that_is_refused_is_read_before_the_connection_closes":
        "ServeOptions.max_body",
    "tests/process/test_serve_connections.py::test_connections_are_limited": "ServeOptions.max_connections",
    "tests/process/test_serve.py::test_texts_wait_in_turn_or_the_limit_is_named": "ServeOptions.max_queue",
    "tests/process/test_serve_connections.py::test_clients_that_send_too_slowly_are_answered_408":
        "ServeOptions.receive_time",
    "tests/process/test_serve.py::test_time_is_limited": "ServeOptions.time_limit",
    # data
    "tests/unit/test_prompts.py::test_the_same_prompts_from_every_kind_of_file":
        "PromptSourceOptions.prompts PromptSourceOptions.column BatchOptions.column TextFormOptions.column",
    "tests/unit/test_prompts.py::test_folders_and_saved_datasets": "TextFormOptions.split",
    "tests/unit/test_prompts.py::test_columns_that_are_named":
        "TextFormOptions.answer_column TextFormOptions.chat TextFormOptions.limit",
    "tests/unit/test_option_effects.py::test_prompts_that_are_chosen":
        "PromptOptions.skip PromptOptions.limit PromptSourceOptions.split PromptSourceOptions.domains "
        "BatchOptions.split",
    "tests/integration/test_acceptance_data.py::test_prompts_that_fill_the_context":
        "DatasetOptions.max_prompt_tokens SamplingOptions.max_new_tokens",
    "tests/integration/test_acceptance_data.py::test_rows_by_direct_computation":
        "SamplingOptions.temperature SamplingOptions.top_k SamplingOptions.top_p",
    "tests/integration/test_acceptance_data.py::test_a_row_does_not_depend_on_its_company":
        "DatasetOptions.batch_size DatasetOptions.shard_size",
    "tests/integration/test_acceptance_data.py::test_labels_by_rule": "RuleOptions.verifier",
    "tests/integration/test_compare_data.py::test_other_pairs_and_drafts": "PairOptions.draft",
    "tests/integration/test_feature_datasets.py::test_the_command_plans_makes_and_finishes":
        "DatasetFolderOptions.output DatasetFolderOptions.plan FeatureSourceOptions.predictor "
        "FeatureSourceOptions.traced",
    "tests/ray/test_workers.py::test_workers_nodes_and_drivers_may_be_killed":
        "WorkerOptions.workers WorkerOptions.ray",
    "tests/unit/test_option_effects.py::test_workers_have_their_gpus": "WorkerOptions.gpus_per_worker",
    "tests/process/test_responses.py::test_labels_are_those_of_specpilots_forwards":
        "ResponseOptions.responses ResponseOptions.base_url ResponseOptions.model",
    "tests/process/test_responses.py::test_a_request_is_sent_again": "ResponseOptions.retries",
    "tests/unit/test_option_effects.py::test_how_long_a_response_may_take": "ResponseOptions.timeout",
    "tests/unit/test_option_effects.py::test_the_number_of_gpus_of_vllm_is_recorded":
        "ResponseOptions.tensor_parallel",
    "plugins/vllm/tests/test_vllm_rounds.py::test_texts_are_labelled_by_specpilots_forwards":
        "ResponseOptions.kv_cache_gib",
    "tests/integration/test_router.py::test_rows_by_direct_computation": "RouterDataOptions.arms",
    "tests/integration/test_feature_datasets.py::test_shards_hold_the_states_at_mixed_tokens":
        "MixingOptions.mixing",
    "tests/integration/test_feature_datasets.py::test_batches_are_whole_rollouts": "MixingOptions.mixings",
    "tests/integration/test_feature_datasets.py::"
    "test_half_precision_is_the_rounded_state_and_one_too_large_is_refused": "FeatureSourceOptions.states",
    "tests/integration/test_feature_datasets.py::test_prompts_that_are_all_as_long_as_max_length":
        "FeatureSourceOptions.max_length",
    "tests/integration/test_feature_datasets.py::test_only_so_many_texts_of_each_dataset": "FeatureSourceOptions.texts",
    # training
    "tests/integration/test_acceptance_training.py::test_each_setting_changes_the_weights":
        "ValidationOptions.validation_fraction TrainingOptions.epochs TrainingOptions.batch_size TrainingOptions.lr "
        "TrainingOptions.weight_decay TrainingOptions.precision TrainingOptions.depth TrainingOptions.w_acc "
        "TrainingOptions.w_rej TrainingOptions.width TrainingOptions.dropout TrainingOptions.use_ngrams",
    "tests/integration/test_acceptance_training.py::test_how_often_a_training_is_logged_and_kept":
        "TrainingOptions.checkpoint_every TrainingOptions.log_every",
    "tests/integration/test_acceptance_training.py::test_early_stopping": "TrainingOptions.patience",
    "tests/integration/test_acceptance_training.py::test_weights_and_biases_offline": "TrainingOptions.wandb",
    "tests/integration/test_acceptance_training.py::test_tensorboard": "TrainingOptions.tensorboard",
    "tests/integration/test_acceptance_training.py::test_resume_after_a_stop_anywhere_is_exact":
        "RunOptions.output RunOptions.resume",
    "tests/integration/test_acceptance_training.py::test_features_are_made_in_the_run_folder":
        "DataOptions.data",
    "tests/process/test_training_processes.py::test_two_processes_and_two_machines_do_what_one_does":
        "TrainingOptions.devices TrainingOptions.num_nodes TrainingOptions.strategy",
    "tests/integration/test_ngram_drafts.py::test_each_setting_changes_the_weights":
        "CopyTrainingOptions.width CopyTrainingOptions.dropout",
    "tests/integration/test_router_training.py::test_each_setting_changes_the_weights":
        "RouterTrainingOptions.reward RouterTrainingOptions.alpha RouterTrainingOptions.cost "
        "RouterTrainingOptions.length RouterTrainingOptions.standardize RouterTrainingOptions.width "
        "RouterTrainingOptions.examples RouterTrainingOptions.gradient RouterTrainingOptions.baseline "
        "RouterTrainingOptions.entropy",
    "tests/integration/test_train_draft.py::test_each_setting_changes_the_weights":
        "DraftTrainingOptions.window DraftTrainingOptions.positions DraftTrainingOptions.layers "
        "DraftTrainingOptions.vocabulary DraftTrainingOptions.own_output DraftTrainingOptions.features",
    "tests/integration/test_train_draft.py::test_training_continues_a_draft": "DraftTrainingOptions.initial",
    "tests/integration/test_train_draft.py::test_stored_states_train_the_same_draft":
        "DraftTrainingOptions.cache_states",
    "tests/integration/test_moved_models.py::test_features_of_models_that_have_moved":
        "FeatureSourceOptions.draft FeatureSourceOptions.target",
    "tests/integration/test_moved_models.py::test_a_calibration_with_a_draft_that_has_moved": "CalibrateOptions.draft",
    "tests/integration/test_calibration.py::test_the_exponent_of_the_draft_is_fitted": "CalibrateOptions.target",
    "tests/integration/test_moved_models.py::test_copies_of_a_target_that_has_moved": "CopyTrainingOptions.target",
    "tests/integration/test_moved_models.py::test_epochs_are_compared_by_the_costs_that_are_given":
        "PredictorTrainingOptions.cost",
    # what is done with what was trained
    "tests/integration/test_trimmed_drafts.py::test_trim_vocabulary":
        "TrimOptions.draft TrimOptions.keep TrimOptions.output TrimOptions.target OverwriteOptions.overwrite",
    "tests/integration/test_acceptance_training.py::test_export_gives_the_best_head":
        "ExportOptions.run ExportOptions.output ExportOptions.threshold",
    "tests/integration/test_own_predictor.py::test_a_predictor_is_one_file": "ExportOptions.predictor",
    "tests/integration/test_train_draft.py::test_a_trimmed_draft_is_exported_with_the_whole_vocabulary":
        "ExportOptions.whole_vocabulary",
    "tests/unit/test_option_effects.py::test_a_controller_is_pushed_where_it_is_asked":
        "ExportOptions.push_to ExportOptions.private",
    "tests/integration/test_calibration.py::test_the_shipped_head_is_calibrated":
        "CalibrateOptions.controller CalibrateOptions.data CalibrateOptions.output CalibrateOptions.method "
        "CalibrateOptions.report",
    # measurements
    "tests/integration/test_compare.py::test_compare_command":
        "CompareOptions.length CompareOptions.output CompareOptions.clock",
    "tests/integration/test_compare.py::test_decoders_of_a_file": "CompareOptions.decoders",
    "tests/integration/test_compare.py::test_the_time_decides_how_many_prompts_are_decoded": "CompareOptions.minutes",
    "tests/integration/test_plan.py::test_a_comparison_prints_the_plans": "CompareOptions.rules CompareOptions.cost",
    "tests/integration/test_compare_data.py::test_a_planted_drift_is_found_and_halves_have_none":
        "CompareOptions.data CompareOptions.against",
    "tests/integration/test_compare_data.py::test_settings_for_engines_from_rounds": "CompareOptions.engine_cost",
    "tests/integration/test_compare_page.py::test_a_comparison_in_python": "CompareOptions.wandb",
    "tests/integration/test_compare.py::test_decoders_have_what_the_comparison_has_in_common":
        "MeasurementOptions.draft",
    "tests/integration/test_cost_model.py::test_the_predictors_time_belongs_to_a_draft_step": "CostBenchOptions.judge",
    "tests/integration/test_cost_model.py::test_measured_costs_are_read_again":
        "RepeatOptions.repeats OutputFileOptions.output",
    "tests/integration/test_compare_page.py::test_demo":
        "DemoOptions.output DemoOptions.prompts DemoOptions.held_out DemoOptions.max_new_tokens",
    "tests/integration/test_compare_page.py::test_demo_of_a_loaded_pair": "DemoOptions.real",
    "tests/process/test_cli.py::test_env_as_json": "EnvOptions.json TrainingOptions.threads",
    "tests/process/test_cli.py::test_env_names_the_forward_of_a_model":
        "EnvOptions.target EnvOptions.draft EnvOptions.dtype EnvOptions.graphs",
}  # fmt: skip


def classes_of(commands: Commands) -> set[type[Any]]:
    """Return the classes of options that the commands take, and those of each predictor's training."""
    collected: set[type[Any]] = set()
    for entry in commands.values():
        if isinstance(entry, Mapping):
            collected |= classes_of(entry)
        else:
            collected |= {kind for name, kind in get_type_hints(entry).items() if name != "return"}
    return collected


def options() -> set[str]:
    """Return every option as CLASS.option."""
    predictors = {import_module(f"specpilot.controllers{name}").TrainingOptions for name in PREDICTORS.values()}
    collected = set()
    for kind in classes_of(COMMANDS) | predictors:
        for field in fields(kind):
            owner = next(base for base in reversed(kind.__mro__) if field.name in vars(base).get("__annotations__", {}))
            collected.add(f"{owner.__name__}.{field.name}")
    return collected


def test_every_option_has_a_test_of_its_effect() -> None:
    """A new option needs an entry in ``EFFECTS``."""
    named = Counter(option for text in EFFECTS.values() for option in text.split())
    assert sorted(options() - named.keys()) == []
    assert sorted(named.keys() - options()) == []
    assert [option for option, count in named.items() if count > 1] == []


def test_the_tests_are_there_and_name_the_options() -> None:
    """The file of each test contains the option as a keyword, a flag or a key."""
    for test, text in EFFECTS.items():
        path, _, name = test.partition("::")
        source = (ROOT / path).read_text(encoding="utf-8")
        functions = [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
        assert name in functions, test
        for option in text.split():
            word = option.partition(".")[2]
            assert re.search(rf"\b{word}\b|--(no-)?{word.replace('_', '-')}\b", source), (test, option)
